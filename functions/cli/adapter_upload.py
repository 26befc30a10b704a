"""Sending an adapter's files to the registry: named by their content, so that nothing is sent twice.

The digest is computed here, over the same manifest that the registry makes; that both agree says that what arrived is
what was checked.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from functions.api.ids import Digest
from functions.artifacts import directories
from functions.artifacts import manifest as manifests
from functions.artifacts.manifest import ADAPTER_LIMITS
from functions.cli.refused import Refused
from functions.cli.registry_client import Answered, Registry
from functions.cli.terminal import make_console, make_error_console


@dataclass(frozen=True, slots=True)
class Packed:
    """A folder's files as an artifact."""

    directory: Path
    digest: Digest
    files: tuple[str, ...]
    total_bytes: int


def pack(directory: Path) -> Packed:
    """Hashes every file; ArtifactRefused where they are no artifact."""
    manifest = directories.build_manifest(directory, ADAPTER_LIMITS)
    digest = manifests.digest_of(manifests.encode(manifest))
    files = tuple(entry.path for entry in manifest.files)
    return Packed(directory, digest, files, sum(entry.size_bytes for entry in manifest.files))


def uploaded(registry: Registry, packed: Packed, tenant: str, pool: str, *, as_json: bool) -> None:
    """The registry's store has the content; sent only where it had not."""
    if _is_there(registry, packed.digest, tenant):
        _say("the registry has it already: nothing to send", as_json=as_json)
        return
    with _bar(packed.total_bytes, as_json=as_json) as bar:
        files = [(name, packed.directory / name) for name in packed.files]
        fields = {"tenant": tenant, "base_model": pool, "adapter_type": "lora"}
        answer: dict[str, Any] = registry.upload(
            "/v1/artifacts", files, fields, lambda bytes_: bar.advance(bar.task_ids[0], bytes_)
        )
    if answer.get("digest") != packed.digest:
        words = f"what arrived is {answer.get('digest')}, what was sent {packed.digest}"
        raise Refused(f"{words}: {packed.directory} changed meanwhile; push it again")
    _say(f"{packed.total_bytes / 1e6:.1f} MB sent, checked and stored", as_json=as_json)


def _is_there(registry: Registry, digest: Digest, tenant: str) -> bool:
    """Whether the tenant's versions may name it already: content that another tenant brought in is not ours."""
    try:
        known: dict[str, Any] = registry.get(f"/v1/artifacts/{digest}")
    except Answered as error:
        if error.status == 404:
            return False
        raise
    return known["tenant"] in {None, tenant}


@contextmanager
def _bar(total_bytes: int, *, as_json: bool) -> Iterator[Progress]:
    console = make_error_console()
    columns = (TextColumn("sending"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=as_json or not console.is_terminal) as progress:
        progress.add_task("sending", total=total_bytes)
        yield progress


def _say(words: str, *, as_json: bool) -> None:
    if not as_json:
        make_console().print(f"[green]✓[/] {escape(words)}")
