"""`shoal diff`: show what a configuration would change in the running fleet, before it is pushed.

The configuration is checked like in `shoal validate`, and compared with the registry's snapshot. A configuration never
removes models and keys that were created through the API. They change only if the configuration uses their name, tenant
or pool. Exit status 0 with or without changes, 1 if the configuration has problems or the registry does not answer.
`functions.controller.gitops.changes` describes the changes.
"""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

import httpx
import typer
from rich.markup import escape
from rich.tree import Tree

from functions.api import snapshot as snapshots
from functions.api.loader import Loaded, load_directory
from functions.api.problems import ConfigInvalid
from functions.api.snapshot import Snapshot, SnapshotInvalid
from functions.cli.context import CliContext, current_context, is_clone_of
from functions.cli.refused import CommandRefused
from functions.cli.registry_client import Registry
from functions.cli.terminal import make_console
from functions.cli.validate import DEFAULT_FOLDERS
from functions.controller.gitops.changes import Change, changes_of, changes_to_running, summarize
from functions.controller.gitops.git import GitFailed
from functions.controller.gitops.review import ONLY_PROCESSES, changed_processes
from functions.controller.gitops.source import GitSource
from functions.controller.local.pools import PoolUnusable
from functions.controller.rollouts.book import Book
from functions.controller.rollouts.client import RolloutClient
from functions.controller.rollouts.following import read_book
from functions.controller.snapshot.registry_client import RegistryClient, RegistryRefused, RegistryUnavailable
from functions.controller.unobeyed.declared import declared_findings
from functions.fleet.snapshots import SNAPSHOT_PATH

SHOWN = 50  # changes shown per kind; the rest is counted
_TIMEOUT = httpx.Timeout(30.0, connect=5.0)
_STYLES = {"added": "green", "changed": "yellow", "removed": "red"}
_SIGNS = {"added": "+", "changed": "~", "removed": "-"}


def diff(path: Path | None, *, as_json: bool) -> None:
    root = path if path is not None else Path.cwd()
    context = current_context(clones=True)
    loaded = load_or_exit(root, paths_below(root, context.layout.gitops_dir), as_json=as_json)
    with Registry(context) as registry:
        present = running(registry)
        if present is None:
            changes = changes_of(None, loaded)
        else:
            changes = changes_to_running(present, loaded, api_rows(registry))
    warnings = [each.warning for each in sorted(declared_findings(loaded.objects), key=lambda each: each.problem)]
    processes = () if present is None or not registry.is_local else processes_changed(context, loaded)
    if as_json:
        told = {**described(present, changes), "processes": processes, "warnings": warnings}
        typer.echo(json.dumps(told, indent=2))
    else:
        _show(present, changes, processes)
        _warn(warnings)


def load_or_exit(root: Path, paths: list[Path], *, as_json: bool) -> Loaded:
    """Return the configuration below `root`. If it has problems, print them and exit with status 1; fail if it declares
    nothing."""
    try:
        loaded = load_directory(paths, relative_to=root if root.is_dir() else root.parent)
    except ConfigInvalid as error:
        lines = [str(problem) for problem in error.problems]
        if as_json:
            typer.echo(json.dumps({"problems": lines}, indent=2))
        else:
            typer.echo(f"{error}\n{len(lines)} problem(s): nothing can be compared until they are fixed", err=True)
        raise typer.Exit(1) from error
    if not loaded.objects:
        raise CommandRefused(f"{root} declares nothing: name the folder that holds your configuration")
    return loaded


def paths_below(root: Path, gitops_dir: Path) -> list[Path]:
    """Return the paths that the controller would read.

    In a clone of the fleet's repository, or without files in the usual folders, that is all of `root`. Elsewhere it is
    the top level of each usual folder, which `shoal up` would commit.
    """
    if is_clone_of(gitops_dir, root):
        return [root]
    folders = [root / name for name in DEFAULT_FOLDERS if (root / name).is_dir()]
    files = [file for folder in folders for file in sorted(folder.glob("*")) if file.suffix in {".yaml", ".yml"}]
    return files or [root]


def running(registry: Registry) -> Snapshot | None:
    """Return the registry's snapshot, or None before the first one. Fail if this version cannot read it."""
    content = registry.content(SNAPSHOT_PATH, after=0)
    if content is None:
        return None
    try:
        return snapshots.decode(content)
    except SnapshotInvalid as error:
        raise CommandRefused(f"{registry.url} returned a snapshot that this version cannot read: {error}") from error


def api_rows(registry: Registry) -> Book:
    """Return the models and keys that were declared through the registry's API."""
    return asyncio.run(_read_rows(registry))


async def _read_rows(registry: Registry) -> Book:
    async with httpx.AsyncClient(verify=registry.tls, timeout=_TIMEOUT, trust_env=False) as client:
        try:
            return await read_book(RolloutClient(RegistryClient(client, registry.url, registry.bearer)))
        except (RegistryUnavailable, RegistryRefused) as error:
            raise CommandRefused(
                f"the models and keys that were created through the API cannot be read: {error}"
            ) from error


def processes_changed(context: CliContext, candidate: Loaded) -> tuple[str, ...]:
    """Return the processes of this machine that would be started, replaced or stopped; empty without a usable local
    branch, or if this machine cannot run the candidate."""
    if not context.layout.gitops_dir.is_dir():
        return ()
    try:
        present = GitSource(context.layout.gitops_dir).read_tip().loaded
        return tuple(changed_processes(present, candidate)) if present is not None else ()
    except (GitFailed, PoolUnusable):  # `shoal validate` reports what cannot run here
        return ()


def described(running: Snapshot | None, changes: Sequence[Change]) -> dict[str, object]:
    return {
        "epoch": running.epoch if running is not None else 0,
        "revision": running.revision if running is not None else "",
        "summary": summarize(changes).headline,
        "changes": [
            {"kind": change.kind, "name": change.name, "verb": change.verb, "words": change.words} for change in changes
        ],
    }


def _show(running: Snapshot | None, changes: Sequence[Change], processes: Sequence[str]) -> None:
    against = f"epoch {running.epoch}, {running.revision}" if running is not None else "nothing: no snapshot yet"
    console = make_console()
    if changes or not processes:
        console.print(changes_tree(changes, against))
    else:
        console.print(f"{ONLY_PROCESSES} [dim](against {escape(against)})[/]", soft_wrap=True)
    for line in processes:
        console.print(f"[yellow]~[/] {escape(line)}", soft_wrap=True)


def _warn(warnings: Sequence[str]) -> None:
    """Print the first SHOWN declarations that would be in force but cannot be honoured, and the number of the
    others."""
    console = make_console()
    for warning in warnings[:SHOWN]:
        console.print(f"[yellow]![/] {escape(warning)}", soft_wrap=True)
    if len(warnings) > SHOWN:
        console.print(f"[dim]… and {len(warnings) - SHOWN:,} more warnings[/]")


def changes_tree(changes: Sequence[Change], against: str) -> Tree:
    """Return a tree with the first changes of each kind, under a headline for all of them."""
    tree = Tree(f"{escape(summarize(changes).headline)} [dim](against {escape(against)})[/]", hide_root=False)
    for kind in dict.fromkeys(change.kind for change in changes):
        of_kind = [change for change in changes if change.kind == kind]
        branch = tree.add(f"[bold]{kind}[/]")
        for change in of_kind[:SHOWN]:
            words = change.words.removeprefix(f"{kind} ")
            branch.add(f"[{_STYLES[change.verb]}]{_SIGNS[change.verb]}[/] {escape(words)}")
        if len(of_kind) > SHOWN:
            branch.add(f"[dim]… and {len(of_kind) - SHOWN:,} more[/]")
    return tree
