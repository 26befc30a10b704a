"""Digest of the weights in the folder that an engine starts from: the digest of the folder's manifest.

    a manifest of exactly these files, none newer than it     its digest; nothing is hashed
    a note for the same names, sizes and times                the digest in the note
    otherwise                                                 the digest of the manifest built by hashing

So weights that were fetched by digest cost nothing, and a folder that was modified since is not mistaken for the old
one. Notes are stored below `notes`, which all agents of a node share: 140 GB are hashed once per node, not once per
replica. There are at most MAX_NOTES. A lost or damaged note costs hashing again. All calls block on the disk.

Related modules: `directories` builds manifests; `functions.replica.weights` calls this when an engine has started.
"""

import hashlib
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from functions.api.ids import Digest
from functions.artifacts import directories
from functions.artifacts import manifest as manifests
from functions.artifacts.errors import ArtifactMissing, ArtifactRefused
from functions.artifacts.manifest import MANIFEST_NAME, MODEL_LIMITS
from functions.artifacts.node_locks import try_lock_file

MAX_NOTES = 64
_NOTE_MAX_BYTES = 4096
_POLL_S = 0.2

Facts = dict[str, tuple[int, int]]  # by relative path: size in bytes, modification time in ns


class _Note(msgspec.Struct, frozen=True):
    seen: str  # hash of the facts that the digest belongs to
    digest: str


def weights_digest(
    folder: Path,
    notes: Path,
    *,
    hashed: Callable[[Path], None] = lambda folder: None,
    sleep: Callable[[float], None] = time.sleep,
) -> Digest:
    """Return the digest of the model weights in `folder`: from its manifest, from a note about unchanged files in
    `notes`, or by hashing them. Raise ArtifactError if the folder cannot be an artifact, OSError if it cannot be read.
    `hashed` is called before all bytes are read, which may take minutes. If another process of the node is hashing the
    folder, this call waits for it."""
    facts = facts_of(folder)
    digest = _by_manifest(folder, facts)
    if digest is not None:
        return digest
    note = notes / (hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:32] + ".json")
    seen = _mark(facts)
    notes.mkdir(parents=True, exist_ok=True)
    while True:
        if (known := _read(note)) is not None and known.seen == seen:
            return Digest(known.digest)
        with try_lock_file(note.with_suffix(".lock")) as alone:
            if alone:
                hashed(folder)
                digest = manifests.digest_of(manifests.encode(directories.build_manifest(folder)))
                _write(note, _Note(seen, digest))
                return digest
        sleep(_POLL_S)


def facts_of(folder: Path) -> Facts:
    """Return size and modification time (ns) of every file by its path, without the manifest and hidden ones; raise
    ArtifactRefused if there are too many."""
    found: Facts = {}
    for path in directories.plain_files(folder):
        if path == MANIFEST_NAME or any(part.startswith(".") for part in path.split("/")):
            continue
        status = (folder / path).lstat()
        found[path] = (status.st_size, status.st_mtime_ns)
        if len(found) > MODEL_LIMITS.max_files:
            raise ArtifactRefused(f"{folder.name} has more than {MODEL_LIMITS.max_files} files")
    return found


def _by_manifest(folder: Path, facts: Facts) -> Digest | None:
    """Return the digest of the folder's manifest if it lists exactly these paths and sizes and no file was modified
    after it was written; else None."""
    try:
        digest, manifest = directories.read_manifest(folder)
        written_ns = (folder / MANIFEST_NAME).lstat().st_mtime_ns
    except (ArtifactMissing, ArtifactRefused):
        return None
    sizes = {entry.path: entry.size_bytes for entry in manifest.files}
    is_theirs = sizes == {path: size_bytes for path, (size_bytes, _) in facts.items()}
    return digest if is_theirs and all(time_ns <= written_ns for _, time_ns in facts.values()) else None


def _mark(facts: Facts) -> str:
    return hashlib.sha256(msgspec.json.encode(sorted(facts.items()))).hexdigest()


def _read(path: Path) -> _Note | None:
    try:
        with path.open("rb") as file:
            note = msgspec.json.decode(file.read(_NOTE_MAX_BYTES), type=_Note)
        manifests.check_digest(note.digest)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, ArtifactRefused):
        return None
    return note


def _write(path: Path, note: _Note) -> None:
    """Write the note by one rename, and delete the oldest notes beyond MAX_NOTES."""
    with suppress(OSError):  # full disk: the folder is hashed again next time
        temporary = path.with_suffix(f".{os.getpid()}.new")
        temporary.write_bytes(msgspec.json.encode(note))
        temporary.replace(path)
        notes = sorted(path.parent.glob("*.json"), key=lambda each: each.stat().st_mtime_ns)
        for old in notes[:-MAX_NOTES]:
            old.unlink(missing_ok=True)
