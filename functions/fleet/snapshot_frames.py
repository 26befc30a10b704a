"""Frames of a file: consecutive documents, each after a line `{"bytes":N,"sha256":…}` that covers all of it.

A corrupt frame is rejected. A torn one at the end of the file raises `Torn` instead, because a crash while appending
leaves one. `snapshot_file` decides what is written in which frame.
"""

import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

from functions.api.snapshot import SNAPSHOT_MAX_BYTES, SnapshotInvalid
from functions.api.snapshot_tree import Breathe

_MAX_LINE_BYTES = 200
_CHUNK_BYTES = 64 * 1024
_LINES_A_WRITE = 200


class Torn(Exception):
    """The frame extends beyond the end of the file."""


class _Frame(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    bytes: int
    sha256: str


def next_frame(file: BinaryIO) -> list[bytes] | None:
    """Return the next document in chunks; None at the end of the file. Raises SnapshotInvalid if the frame is
    malformed, too large or has another digest, or Torn."""
    line = file.readline(_MAX_LINE_BYTES)
    if not line:
        return None
    if not line.endswith(b"\n") and len(line) < _MAX_LINE_BYTES:
        raise Torn
    try:
        frame = msgspec.json.decode(line, type=_Frame)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise SnapshotInvalid(f"not a stored snapshot: {error}") from error
    if not 0 < frame.bytes <= SNAPSHOT_MAX_BYTES:
        raise SnapshotInvalid(f"a document of {frame.bytes} bytes is over the limit")
    digest, chunks, left_bytes = hashlib.sha256(), [], frame.bytes
    while left_bytes and (chunk := file.read(min(_CHUNK_BYTES, left_bytes))):
        digest.update(chunk)
        chunks.append(chunk)
        left_bytes -= len(chunk)
    if left_bytes:
        raise Torn
    if digest.hexdigest() != frame.sha256:
        raise SnapshotInvalid("a document does not have the digest that the file states")
    return chunks


def append(path: Path, document: bytes) -> None:
    """Append one frame with the document to an existing file and sync it to the disk."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    with os.fdopen(descriptor, "wb") as file:
        file.write(_line(len(document), hashlib.sha256(document).hexdigest()) + document)
        file.flush()
        os.fsync(file.fileno())


def replace(path: Path, lines: Iterable[bytes], breathe: Breathe) -> int:
    """Replace the file atomically by one frame with these lines; return the document's size in bytes. OSError if the
    disk fails, and the old file stays."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        size_bytes = _write(temporary, lines, breathe)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    _sync_directory(path.parent)
    return size_bytes


def _write(path: Path, lines: Iterable[bytes], breathe: Breathe) -> int:
    """Write one frame with these lines to the file and return the document's size in bytes. The file's first line is
    written last, into the space reserved for it."""
    digest, size_bytes = hashlib.sha256(), 0
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(_line(0, "0" * 64))
        for piece in _pieces(lines):
            digest.update(piece)
            size_bytes += len(piece)
            file.write(piece)
            breathe()
        file.seek(0)
        file.write(_line(size_bytes, digest.hexdigest()))
        file.flush()
        os.fsync(file.fileno())
    return size_bytes


def _line(size_bytes: int, sha256: str) -> bytes:
    """Return the line before a document, with its size and digest; the line's length is constant."""
    return b'{"bytes":%12d,"sha256":"%b"}\n' % (size_bytes, sha256.encode())


def _pieces(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the lines joined into pieces of _LINES_A_WRITE lines: a write and a hash update for each line would cost
    more than the copy."""
    gathered: list[bytes] = []
    for line in lines:
        gathered.append(line)
        if len(gathered) == _LINES_A_WRITE:
            yield b"".join(gathered)
            gathered.clear()
    if gathered:
        yield b"".join(gathered)


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
