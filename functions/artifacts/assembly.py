"""Assemble an artifact from chunks of any source: each chunk is verified, and progress survives a kill.

    <root>/partial/<hex>/manifest   the document that <hex> names
    <root>/partial/<hex>/tree/…     the files at full size, with holes where chunks are missing
    <root>/partial/<hex>/progress   one byte per distinct chunk, 1 = written; it exists once all files are laid out

A chunk is written at its offsets only if its hash is right, and is marked afterwards; so a fetch that was killed can
be resumed. `finish` does not trust the marks, because a power cut may have lost marked chunks. It hashes every file
on the disk again and only then renames the tree to its digest. Chunks that turn out bad count as missing again.

Only one writer at a time: hold `cache.single_flight(digest)` from `open` to `finish`. Several threads of that writer
may call `put`, `read` and `missing` concurrently. All calls block on the disk.
"""

import hashlib
import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from functions.api.ids import Digest
from functions.artifacts import directories
from functions.artifacts import manifest as manifests
from functions.artifacts.cache import ArtifactCache
from functions.artifacts.errors import ArtifactCorrupt, ArtifactMissing, ArtifactRefused, CacheFailed
from functions.artifacts.locations import chunk_key
from functions.artifacts.manifest import MANIFEST_NAME, MODEL_LIMITS, Chunk, FileEntry, Manifest, ManifestLimits
from functions.artifacts.workers import run_all

TREE_NAME = "tree"
PROGRESS_NAME = "progress"
DOCUMENT_NAME = "manifest"
RESERVE_BYTES = 64 * 1024**2  # stays free on the disk, for logs and for other writers of the node
PARALLEL_HASHES = 4  # shards of a large base, one core each: 2 GB/s per core
_READ_ONLY, _READABLE = 0o444, 0o755


@dataclass(slots=True)
class Assembly:
    """An artifact that is being assembled in the cache."""

    cache: ArtifactCache
    digest: Digest
    manifest: Manifest
    document: bytes
    chunks: tuple[Chunk, ...]  # distinct, in the manifest's order, which is also the order of `have`
    _spans: dict[str, list[Chunk]]  # by sha256: every position where that content belongs
    _index: dict[str, int]
    _have: bytearray
    _unproven: set[int] = field(default_factory=set)  # indexes of resumed chunks that were not hashed since
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def open(
        cls, cache: ArtifactCache, digest: Digest, document: bytes, limits: ManifestLimits = MODEL_LIMITS
    ) -> "Assembly":
        """Start an assembly or resume one that was killed. Raise CacheFailed if the disk cannot hold the whole."""
        manifest = manifests.decode_verified(document, digest, limits)
        chunks = manifest.distinct_chunks()
        spans: dict[str, list[Chunk]] = {}
        for chunk in manifest.chunks():
            spans.setdefault(chunk.sha256, []).append(chunk)
        index = {chunk.sha256: position for position, chunk in enumerate(chunks)}
        assembly = cls(cache, digest, manifest, document, chunks, spans, index, bytearray())
        with assembly._disk():
            assembly._have = assembly._resumed() or assembly._laid_out()
        return assembly

    @property
    def have(self) -> bytes:
        """Return one byte per chunk of `chunks`: 1 if it is written, 0 if it is missing."""
        return bytes(self._have)

    @property
    def complete(self) -> bool:
        return 0 not in self._have

    def missing(self) -> list[Chunk]:
        """Return the chunks that are not written yet, in the order of `chunks`."""
        return [chunk for chunk, there in zip(self.chunks, self.have, strict=True) if not there]

    def put(self, chunk: Chunk, content: bytes) -> None:
        """Write a chunk everywhere it belongs. Raise ArtifactCorrupt, and write nothing, if `content` does not
        match."""
        position = self._index[chunk.sha256]
        found = hashlib.sha256(content).hexdigest()
        if found != chunk.sha256 or len(content) != chunk.size_bytes:
            raise ArtifactCorrupt(
                f"{chunk_key(chunk.sha256)} of {chunk.path} arrived corrupt: {len(content)} of {chunk.size_bytes} "
                f"bytes, sha256 {found}"
            )
        with self._disk():
            for span in self._spans[chunk.sha256]:
                _write_at(self._tree / span.path, span.offset_bytes, content)
            _write_at(self._folder / PROGRESS_NAME, position, b"\x01")
        with self._lock:
            self._have[position] = 1
            self._unproven.discard(position)

    def read(self, sha256: str) -> bytes | None:
        """Return a chunk for a peer, or None if it is not here. The receiver verifies it.

        A chunk that a killed fetch had written is hashed before it is first sent: a power cut may have lost it, and
        peers ban a sender of bad bytes.
        """
        position = self._index.get(sha256)
        if position is None or not self._have[position]:
            return None
        chunk = self.chunks[position]
        try:
            with (self._tree / chunk.path).open("rb") as file:
                file.seek(chunk.offset_bytes)
                content = file.read(chunk.size_bytes)
        except OSError:  # finished meanwhile: the tree has moved to its digest
            return None
        if position in self._unproven:
            if hashlib.sha256(content).hexdigest() != sha256:
                return None
            self._unproven.discard(position)
        return content

    def finish(self) -> Path:
        """Verify the files on the disk, make them durable and read-only, and install them under the digest; return
        their directory. Raise ArtifactCorrupt if chunks are bad (they are then missing again), ValueError if chunks are
        missing."""
        if not self.complete:
            raise ValueError(f"{self.digest} is not complete: {self._have.count(0)} chunks are missing")
        self._verify_files()
        with self._disk():
            for entry in self.manifest.files:
                _seal(self._tree / entry.path)
            directories.write_durably(self._tree / MANIFEST_NAME, self.document)
            (self._tree / MANIFEST_NAME).chmod(_READ_ONLY)
            for folder in {path.parent for path in self._tree.rglob("*")}:
                folder.chmod(_READABLE)
                directories.sync_directory(folder)
        path = self.cache.install(self._tree, self.digest)
        shutil.rmtree(self._folder, ignore_errors=True)
        return path

    @property
    def _folder(self) -> Path:
        return self.cache.partial_path(self.digest)

    @property
    def _tree(self) -> Path:
        return self._folder / TREE_NAME

    def _resumed(self) -> bytearray | None:
        """Return the progress of a killed assembly, one byte per chunk, or None if there is none, it is unusable or its
        files were not laid out completely. Its written chunks count as unproven until they are hashed."""
        try:
            have = bytearray((self._folder / PROGRESS_NAME).read_bytes())
        except FileNotFoundError:
            return None
        sizes = {entry.path: entry.size_bytes for entry in self.manifest.files}
        as_laid_out = all(_size_of(self._tree / path) == size for path, size in sizes.items())
        if len(have) != len(self.chunks) or not as_laid_out or not set(have) <= {0, 1}:
            return None
        self._check_room(sum(chunk.size_bytes for chunk, there in zip(self.chunks, have, strict=True) if not there))
        self._unproven = {position for position, there in enumerate(have) if there}
        for path in sizes:  # a kill during `finish` may have left the file sealed
            (self._tree / path).chmod(0o644)
        return have

    def _laid_out(self) -> bytearray:
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)
        self._check_room(self.manifest.total_bytes)
        (self._folder / DOCUMENT_NAME).write_bytes(self.document)
        self._tree.mkdir()
        for entry in self.manifest.files:
            path = self._tree / entry.path
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("xb") as file:
                file.truncate(entry.size_bytes)
        have = bytearray(len(self.chunks))
        temporary = self._folder / f"{PROGRESS_NAME}.new"
        temporary.write_bytes(have)
        temporary.rename(self._folder / PROGRESS_NAME)
        return have

    def _check_room(self, needed_bytes: int) -> None:
        free_bytes = shutil.disk_usage(self._folder).free
        if needed_bytes + RESERVE_BYTES > free_bytes:
            raise CacheFailed(
                f"{self.digest} needs {needed_bytes} bytes and {RESERVE_BYTES} to spare; the cache's disk has "
                f"{free_bytes}: free some, or lower the cache's limit so that it evicts"
            )

    def _verify_files(self) -> None:
        """Verify every file, even after a corrupt one, so that all bad chunks are marked as missing. Raise the first
        failure."""
        failures: list[ArtifactCorrupt] = []

        def verify(entry: FileEntry) -> None:
            try:
                directories.verify_file(self._tree, entry)
            except ArtifactCorrupt as error:
                self._find_bad_chunks(entry, error)
                failures.append(error)

        run_all(verify, self.manifest.files, parallel=PARALLEL_HASHES)
        if failures:
            raise failures[0]

    def _find_bad_chunks(self, entry: FileEntry, error: ArtifactCorrupt) -> None:
        """Mark the file's bad chunks as missing. If all are good, the manifest contradicts itself: raise
        ArtifactRefused."""
        bad = [chunk for chunk in self.manifest.chunks() if chunk.path == entry.path and not self._is_good(chunk)]
        if not bad:
            raise ArtifactRefused(f"{self.digest} contradicts itself: publish it again ({error})") from error
        with self._disk():
            for chunk in bad:
                position = self._index[chunk.sha256]
                _write_at(self._folder / PROGRESS_NAME, position, b"\x00")
                with self._lock:
                    self._have[position] = 0

    def _is_good(self, chunk: Chunk) -> bool:
        try:
            with directories.open_plain(self._tree / chunk.path) as file:
                file.seek(chunk.offset_bytes)
                return hashlib.sha256(file.read(chunk.size_bytes)).hexdigest() == chunk.sha256
        except (ArtifactMissing, ArtifactRefused):
            return False

    @contextmanager
    def _disk(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise CacheFailed(f"{self.digest} cannot be written to the cache: {error.strerror}") from error


def _write_at(path: Path, offset_bytes: int, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        view = memoryview(content)
        while view:
            written = os.pwrite(descriptor, view, offset_bytes)
            view, offset_bytes = view[written:], offset_bytes + written
    finally:
        os.close(descriptor)


def _seal(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fchmod(descriptor, _READ_ONLY)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _size_of(path: Path) -> int | None:
    try:
        return path.lstat().st_size
    except OSError:
        return None
