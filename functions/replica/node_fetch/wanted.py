"""Weights that a node requests: `sha256:…` or `shoal://NAME@VERSION`, and a folder to link them at.

    python -m functions.replica.node_fetch shoal://llama-3-8b@v1 /mnt/models      as KServe calls a storage initializer

A name resolves to the digest that the registry has published for the version, which git pins. If the registry does
not answer or does not know the version (yet), the version's pointer in the store decides: a node that starts during
an outage of the registry must not wait.

An existing folder (a volume's mount) is filled with a link for each entry of the artifact, the manifest last.
Otherwise the folder itself becomes a link. Earlier links there are removed, and nothing else.
"""

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from functions.api.ids import Digest
from functions.artifacts.errors import ArtifactRefused, CacheFailed
from functions.artifacts.locations import WEIGHTS_SCHEME, WeightsName, parse_weights_name
from functions.artifacts.manifest import MANIFEST_NAME, check_digest
from functions.artifacts.publish import read_pointer
from functions.artifacts.s3 import S3Store

_ANSWER_MAX_BYTES = 4096

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Wanted:
    """A digest or a name, with its folder; `None` means in the cache alone."""

    what: Digest | WeightsName
    folder: Path | None = None


def parse_wanted(arguments: Sequence[str]) -> list[Wanted]:
    """Parse digests and `shoal://NAME@VERSION`, each optionally followed by its folder (an absolute path). Raise
    ArtifactRefused for anything else."""
    wanted: list[Wanted] = []
    for argument in arguments:
        if not argument.startswith("/"):
            named = argument.startswith(WEIGHTS_SCHEME)
            wanted.append(Wanted(parse_weights_name(argument) if named else check_digest(argument)))
        elif wanted and wanted[-1].folder is None:
            wanted[-1] = Wanted(wanted[-1].what, Path(argument))
        else:
            raise ArtifactRefused(f"{argument} is a folder without a digest or name before it")
    return wanted


async def published_digest(registry: httpx.AsyncClient, name: WeightsName) -> Digest | None:
    """Return the digest that the registry has published for the version, or None if it does not answer with one."""
    try:
        response = await registry.get(f"/internal/v1/weights/{name.name}/{name.version}")
        if response.status_code != 200 or len(response.content) > _ANSWER_MAX_BYTES:
            _log.warning("the registry answered %d on %s", response.status_code, name)
            return None
        return _digest_in(response.json())
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, ArtifactRefused) as error:
        _log.warning("the registry cannot resolve %s: %r", name, error)
        return None


def pointed_digest(store: S3Store, name: WeightsName) -> Digest:
    """Return the digest that `shoal base push` stored under the name. Raise ArtifactMissing if there is none."""
    return read_pointer(store, name.location(store.bucket).uri)


def link(artifact: Path, folder: Path) -> None:
    """Make `folder` show the artifact: as a link to it, or filled with links if it is a directory already. Raise
    CacheFailed if it holds something that is not a link, or if the disk fails."""
    try:
        if folder.is_dir() and not folder.is_symlink():
            _fill(artifact, folder)
            return
        folder.parent.mkdir(parents=True, exist_ok=True)
        _replace_link(folder, artifact)
    except OSError as error:
        raise CacheFailed(f"{artifact.name} cannot be linked at {folder}: {error.strerror}") from error


def _fill(artifact: Path, folder: Path) -> None:
    names = sorted((entry.name for entry in artifact.iterdir()), key=lambda name: (name == MANIFEST_NAME, name))
    for stale in list(folder.iterdir()):
        if stale.is_symlink() and (stale.name == MANIFEST_NAME or stale.name not in names):
            stale.unlink()
    for name in names:
        _replace_link(folder / name, artifact / name)


def _replace_link(at: Path, target: Path) -> None:
    if at.exists() and not at.is_symlink():
        raise CacheFailed(f"{at} exists and is not a link, so it is not replaced")
    temporary = at.with_name(f".{at.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(target)
    temporary.rename(at)


def _digest_in(answer: Any) -> Digest | None:
    """Return the digest in the registry's decoded answer, or None if there is none. Raise ArtifactRefused if it is not
    a valid digest."""
    digest = answer.get("digest") if isinstance(answer, dict) else None
    return check_digest(digest) if isinstance(digest, str) else None
