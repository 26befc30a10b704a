"""Sources of the two configurations that `shoal plan` compares: the candidate and the base.

    candidate    the working tree (read like in `shoal diff`), or the revision of `--rev`
    base         `--base REV`, else what the cluster of `--context` runs, else the revision that the local fleet runs,
                 else HEAD

Revisions are read from git's objects, so a bare repository works too. So does a push that was not accepted yet:
git sets `GIT_QUARANTINE_PATH` for its hooks. In a bare repository every YAML file counts, as for a push. In a working
copy only the files that `shoal diff` would read count.
"""

import json
import os
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path

import typer

from functions.api.loader import Loaded, load_texts
from functions.api.problems import ConfigInvalid
from functions.api.snapshot import Snapshot
from functions.cli.cluster.access import ClusterChoice, KubeCluster
from functions.cli.cluster.declared import declared_objects
from functions.cli.cluster.picture import revision_of
from functions.cli.context import GIT_TIMEOUT_S, CliContext, is_clone_of
from functions.cli.diff import load_or_exit, paths_below, running
from functions.cli.refused import CommandRefused
from functions.cli.registry_client import Registry
from functions.cli.validate import DEFAULT_FOLDERS
from functions.controller.gitops.changes import compiled
from functions.controller.gitops.git import Git, GitFailed
from functions.controller.gitops.source import LISTING_MAX_BYTES, Blobs, read_listing
from functions.simulator.plan.declarations import PoolDeclaration, declarations_of

_SHORT = 12
_FROM_OBJECTS = "kubernetes"  # first part of a revision if the controller follows the cluster's own objects
_PROBLEMS_TOLD = 5


@dataclass(frozen=True, slots=True)
class Configuration:
    words: str  # name of the configuration in the output
    loaded: Loaded
    snapshot: Snapshot
    pools: tuple[PoolDeclaration, ...]


@dataclass(frozen=True, slots=True)
class RevisionSource:
    """Git repository from which revisions are read."""

    git: Git
    prefix: str  # folder within a working copy, ending in `/`; empty: its top
    is_bare: bool


def candidate_of(root: Path, revision: str | None, context: CliContext, *, as_json: bool) -> Configuration:
    """Return the candidate. If it has problems, print them and exit, like `shoal diff`."""
    if revision is not None:
        return at_revision(_needed(root), revision, context, root)
    paths = paths_below(root, context.layout.gitops_dir)
    return configuration(f"the working tree {root}", load_or_exit(root, paths, as_json=as_json))


def base_of(root: Path, revision: str | None, context: CliContext, cluster: ClusterChoice | None) -> Configuration:
    """Return the base; the module docstring gives the order of its sources."""
    if revision is not None:
        return at_revision(_needed(root), revision, context, root)
    if cluster is not None:
        return _of_cluster(KubeCluster(cluster), context, root)
    live = _live(context)
    if live is not None:
        return live
    repository = repository_of(root)
    if repository is None:
        raise CommandRefused(f"no fleet runs here and {root} is not in a git repository: name the base with --base REV")
    return at_revision(repository, "HEAD", context, root)


def configuration(words: str, loaded: Loaded) -> Configuration:
    return Configuration(words, loaded, compiled(loaded, {}), declarations_of(loaded))


def repository_of(root: Path) -> RevisionSource | None:
    """Return the git repository, bare or not, at or above a folder, or None if there is none."""
    folder = root if root.is_dir() else root.parent
    if (folder / "HEAD").is_file() and (folder / "objects").is_dir():
        quarantine = os.environ.get("GIT_QUARANTINE_PATH")
        objects = Path(quarantine).resolve() if quarantine else None
        return RevisionSource(Git(folder.resolve(), objects), "", is_bare=True)
    command = ["git", "-C", str(folder), "rev-parse", "--absolute-git-dir", "--show-prefix"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=GIT_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode != 0:
        return None
    directory, _, prefix = done.stdout.partition("\n")
    return RevisionSource(Git(Path(directory)), prefix.strip("\n"), is_bare=False)


def at_revision(repository: RevisionSource, revision: str, context: CliContext, root: Path) -> Configuration:
    """Return the configuration at a revision. Fail if the revision is missing, invalid or declares nothing."""
    everything = repository.is_bare or is_clone_of(context.layout.gitops_dir, root)
    try:
        commit = repository.git.commit_of(revision)
        if commit is None:
            raise CommandRefused(f"there is no revision {revision!r} in {repository.git.repository}")
        texts = _texts(repository.git, commit, repository.prefix, everything=everything)
    except GitFailed as error:
        raise CommandRefused(f"{revision} cannot be read: {error}") from error
    return configuration(f"{revision} ({commit[:_SHORT]})", _loaded(texts, revision))


def _texts(git: Git, commit: str, prefix: str, *, everything: bool) -> dict[str, bytes]:
    listed = git.run("ls-tree", "-r", "-z", "-l", "--full-tree", commit, max_bytes=LISTING_MAX_BYTES)
    found = read_listing(listed)
    own = {path.removeprefix(prefix): each for path, each in found.files if path.startswith(prefix)}
    usual = {path: each for path, each in own.items() if _is_usual(path)}
    wanted = own if everything or not usual else usual
    contents = Blobs().read(git, wanted.values())
    return {path: contents[each] for path, each in wanted.items()}


def _is_usual(path: str) -> bool:
    """Return True for a file at the top level of a folder that `shoal up` would commit."""
    folder, _, name = path.partition("/")
    return folder in DEFAULT_FOLDERS and bool(name) and "/" not in name


def _loaded(texts: dict[str, bytes], revision: str) -> Loaded:
    try:
        loaded = load_texts(texts.items())
    except ConfigInvalid as error:
        lines = "\n".join(f"  {problem}" for problem in error.problems[:_PROBLEMS_TOLD])
        raise CommandRefused(f"{revision} is not valid, so nothing can be compared:\n{lines}") from error
    if not loaded.objects:
        raise CommandRefused(f"{revision} declares nothing in this folder")
    return loaded


def _live(context: CliContext) -> Configuration | None:
    """Return what the local fleet runs. None if there is none, or if its revision is not in its repository."""
    try:
        with Registry(context) as registry:
            snapshot = running(registry) if registry.is_local else None
    except CommandRefused:
        return None
    if snapshot is None or not snapshot.revision.startswith("main@"):
        return None
    commit = snapshot.revision.removeprefix("main@")
    git = Git(context.layout.gitops_dir)
    try:
        texts = _texts(git, commit, "", everything=True)
    except GitFailed as error:
        typer.echo(
            f"the fleet's own revision {commit[:_SHORT]} cannot be read ({error}): HEAD is used instead", err=True
        )
        return None
    return configuration(f"the running fleet's {snapshot.revision[: len('main@') + _SHORT]}", _loaded(texts, commit))


def _of_cluster(cluster: KubeCluster, context: CliContext, root: Path) -> Configuration:
    """Return the objects that the cluster follows.

    With the git source, return its applied commit from the local repository.
    """
    record = cluster.get(f"/api/v1/namespaces/{cluster.choice.system}/configmaps/shoal-controller")
    applied = revision_of(record)["last_applied"]
    branch, _, commit = applied.rpartition("@")
    if branch and branch != _FROM_OBJECTS:
        found = at_revision(_needed(root), commit, context, root)
        return replace(found, words=f"what {cluster.server} runs, {branch}@{commit[:_SHORT]}")
    texts = {
        f"{each['kind']}/{each['metadata']['name']}": json.dumps(each).encode() for each in declared_objects(cluster)
    }
    return configuration(f"the objects at {cluster.server}", _loaded(texts, cluster.server))


def _needed(root: Path) -> RevisionSource:
    repository = repository_of(root)
    if repository is None:
        raise CommandRefused(f"{root} is not in a git repository, which a revision needs")
    return repository
