"""Set up the git repository of the configuration from the project's YAML, when `shoal up` finds a fresh directory.

`inferenceservices/`, `policies/` and `registry/*.yaml` are committed to the branch `shipped` of the bare repository.
Each Tenant without keys gets the hash of its demo key in that commit; comments are preserved. `main`, which the fleet
follows, starts at the same commit. When the project's files change later:

* `main` follows `shipped` while it has no commits of its own;
* otherwise `main` stays, and a message asks the operator to merge `shipped`, like any upstream branch.

A configuration directory from before the repository existed becomes a commit on `main`, on top of `shipped`.
"""

import io
import shutil
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from functions.controller.gitops.git import GitFailed
from functions.controller.gitops.repository import BRANCH, Repository
from functions.controller.local.layout import StateLayout
from functions.controller.local.prepare.secret_files import DemoKey, ensure_demo_keys, key_hash
from functions.controller.local.prepare.steps import CannotPrepare
from functions.controller.local.regions import control_sockets

SHIPPED = "shipped"
SOURCE_DIRS = ("inferenceservices", "policies", "registry")
SOURCE_MAX_BYTES = 8 * 1024 * 1024
FORMER_MAX_FILES = 10_000


def ensure_configuration(layout: StateLayout, project_dir: Path) -> list[str]:
    """Create the repository and update its branch `shipped`. Return notes for the operator, one per line. Raise
    CannotPrepare if git fails."""
    repository = Repository(layout.gitops_dir)
    try:
        repository.ensure(control_sockets(layout))
        return _commit_shipped(repository, layout, shipped_files(layout, project_dir))
    except GitFailed as error:
        raise CannotPrepare(f"the repository {layout.gitops_dir} cannot be prepared: {error}") from error


def shipped_files(layout: StateLayout, project_dir: Path) -> dict[str, bytes]:
    """Return the shipped YAML files by path, with demo keys for tenants without keys; raise CannotPrepare if there are
    none. Subdirectories are left out, because they hold other fleets and data."""
    sources = {
        f"{directory}/{path.name}": path
        for directory in SOURCE_DIRS
        for path in sorted((project_dir / directory).glob("*.y*ml"))
        if path.suffix in (".yaml", ".yml") and path.is_file()
    }
    if not sources:
        where = f"{', '.join(SOURCE_DIRS)} below {project_dir.resolve()}"
        raise CannotPrepare(f"no YAML in {where}: run this in the project, or set SHOAL_PROJECT_DIR")
    documents = {relative: _read(path) for relative, path in sources.items()}
    keys = ensure_demo_keys(layout, _keyless_tenants(documents))
    return {relative: _with_keys(layout, text, keys).encode() for relative, text in documents.items()}


def _commit_shipped(repository: Repository, layout: StateLayout, files: dict[str, bytes]) -> list[str]:
    former, main = (repository.git.commit_of(f"refs/heads/{branch}") for branch in (SHIPPED, BRANCH))
    shipped = former
    if former is None or repository.files(former) != files:
        message = "Configuration that the project ships"
        shipped = repository.commit(SHIPPED, files, message, parent=former)
    if main is None:
        _create_main(repository, layout, shipped or "", files)
    elif main == former and shipped is not None and shipped != former:
        repository.point(BRANCH, shipped, former=main)
    elif shipped != former:
        return [f"the project's YAML and {BRANCH} have both changed: run `git merge origin/{SHIPPED}` and push"]
    return []


def _create_main(repository: Repository, layout: StateLayout, shipped: str, ships: dict[str, bytes]) -> None:
    """Start `main` at what ships. If there is a former configuration directory, its files replace the shipped files of
    the same path in a second commit, and it is removed. The other files stay as shipped, because former configurations
    had no files for the tiers that their tenants name."""
    files = _former_files(layout.former_config_dir)
    if files:
        repository.commit(BRANCH, ships | files, "Configuration from before the repository existed", parent=shipped)
        shutil.rmtree(layout.former_config_dir)
    else:
        repository.point(BRANCH, shipped, former=None)


def _former_files(directory: Path) -> dict[str, bytes]:
    found = sorted(path for path in directory.rglob("*.y*ml") if path.is_file() and not path.is_symlink())
    return {path.relative_to(directory).as_posix(): path.read_bytes() for path in found[:FORMER_MAX_FILES]}


def _read(path: Path) -> str:
    if path.stat().st_size > SOURCE_MAX_BYTES:
        raise CannotPrepare(f"{path} is larger than {SOURCE_MAX_BYTES} bytes, the limit for a configuration file")
    return path.read_text(encoding="utf-8")


def _keyless_tenants(documents: dict[str, str]) -> list[str]:
    return [tenant["metadata"]["name"] for text in documents.values() for tenant in _tenants(_parse(text))]


def _with_keys(layout: StateLayout, text: str, keys: dict[str, DemoKey]) -> str:
    """Return the text with demo keys in tenants that have none. Without such tenants it is unchanged to the byte."""
    documents = _parse(text)
    tenants = _tenants(documents)
    if not tenants:
        return text
    for tenant in tenants:
        key = keys[tenant["metadata"]["name"]]
        tenant["spec"]["keys"] = [
            {"id": key.key_id, "hmacSha256": key_hash(layout, key), "scopes": ["inference"], "maxClass": "interactive"}
        ]
    output = io.StringIO()
    _yaml().dump_all(documents, output)
    return output.getvalue()


def _tenants(documents: list[Any]) -> list[Any]:
    """Return Tenant documents without keys that have the expected shape; the loader validates the rest."""
    return [
        document
        for document in documents
        if isinstance(document, dict)
        and document.get("kind") == "Tenant"
        and isinstance(document.get("spec"), dict)
        and not document["spec"].get("keys")
        and isinstance(document.get("metadata"), dict)
        and isinstance(document["metadata"].get("name"), str)
    ]


def _parse(text: str) -> list[Any]:
    try:
        return list(_yaml().load_all(text))
    except YAMLError:
        return []  # copied unchanged: the loader reports the error with file and line


def _yaml() -> YAML:
    yaml = YAML(typ="rt")
    yaml.preserve_quotes = True
    yaml.width = 4096
    return yaml
