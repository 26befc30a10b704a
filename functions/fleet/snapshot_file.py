"""One snapshot on disk: what a process starts from when nobody can tell it anything newer.

The file is `{"sha256": …, "document": <the snapshot's bytes>}`. The digest covers every byte of the document, so a
torn or flipped file is refused rather than served. A write is visible whole or not at all: temporary file, fsync,
rename, fsync of the directory.

Neighbours: `snapshots` keeps a follower's cache here, the registry its published document.
"""

import hashlib
import os
from pathlib import Path

import msgspec

from functions.api import snapshot as snapshots
from functions.api.snapshot import SNAPSHOT_MAX_BYTES, Snapshot, SnapshotInvalid

_ENVELOPE_BYTES = 4096  # more than the envelope can need


class _Stored(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    sha256: str
    document: msgspec.Raw


def write(path: Path, document: bytes) -> None:
    """Replace the file's content durably; OSError where the disk refuses, and the old file stays."""
    stored = _Stored(sha256=hashlib.sha256(document).hexdigest(), document=msgspec.Raw(document))
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        _write_synced(temporary, msgspec.json.encode(stored))
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    _sync_directory(path.parent)


def read(path: Path) -> Snapshot | None:
    """The stored snapshot; None where there is no file, SnapshotInvalid where it cannot be trusted."""
    try:
        size_bytes = path.stat().st_size
        if size_bytes > SNAPSHOT_MAX_BYTES + _ENVELOPE_BYTES:
            raise SnapshotInvalid(f"{path}: {size_bytes} bytes is over the limit")
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SnapshotInvalid(f"{path} cannot be read: {error}") from error
    try:
        stored = msgspec.json.decode(content, type=_Stored)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SnapshotInvalid(f"{path} is no stored snapshot: {error}") from error
    document = bytes(stored.document)
    if hashlib.sha256(document).hexdigest() != stored.sha256:
        raise SnapshotInvalid(f"{path}: the document does not have the digest that the file states")
    return snapshots.decode(document)


def _write_synced(path: Path, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
