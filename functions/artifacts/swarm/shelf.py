"""Chunks that this node can send: those of cached artifacts, and those that unfinished downloads have so far.

A chunk is requested together with its artifact, so only the manifests of requested artifacts are indexed (an LRU).
One whole chunk is read at a time; the number of parallel uploads limits the memory. Chunks are not hashed here: the
receiver verifies them, and the agent's own checks find a failing disk. All calls except `have` block on the disk.
"""

import threading
from collections import OrderedDict
from dataclasses import dataclass, field

from functions.api.ids import Digest
from functions.artifacts import directories
from functions.artifacts.assembly import Assembly
from functions.artifacts.cache import ArtifactCache
from functions.artifacts.errors import ArtifactError
from functions.artifacts.manifest import MODEL_LIMITS, Chunk
from functions.decisions.distribution.chunk_bits import full

_MAX_KNOWN = 64  # manifests of whole artifacts, about 1 MB each at most
_BITS = bytes.maketrans(b"\x00\x01", b"01")


@dataclass(slots=True)
class ChunkShelf:
    cache: ArtifactCache
    _assemblies: dict[Digest, Assembly] = field(default_factory=dict)
    _whole: OrderedDict[Digest, dict[str, Chunk]] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, assembly: Assembly) -> None:
        """Serve the chunks of this unfinished artifact too, as far as they are written."""
        with self._lock:
            self._assemblies[assembly.digest] = assembly

    def remove(self, digest: Digest) -> None:
        """Stop serving chunks of an assembly that has ended, with success or not."""
        with self._lock:
            self._assemblies.pop(digest, None)

    def have(self, digest: Digest) -> tuple[int, int] | None:
        """Return bitmap and number of chunks of an artifact that is being assembled or, if cached, was requested
        before; else None."""
        with self._lock:
            assembly, whole = self._assemblies.get(digest), self._whole.get(digest)
        if assembly is not None:
            return bits_of(assembly.have), len(assembly.chunks)
        return None if whole is None else (full(len(whole)), len(whole))

    def read(self, digest: Digest, sha256: str) -> bytes | None:
        """Return a chunk's bytes from the artifact that is being assembled or cached, unverified, or None if it is not
        here."""
        with self._lock:
            assembly = self._assemblies.get(digest)
        if assembly is not None and (content := assembly.read(sha256)) is not None:
            return content
        return self._from_cache(digest, sha256)

    def find(self, digest: Digest) -> bool:
        """Return True if the artifact is being assembled here or is cached. Afterwards `have` knows a cached one."""
        with self._lock:
            known = digest in self._assemblies or digest in self._whole
        return known or self._chunks_of(digest) is not None

    def _from_cache(self, digest: Digest, sha256: str) -> bytes | None:
        chunks = self._chunks_of(digest)
        chunk = None if chunks is None else chunks.get(sha256)
        if chunk is None:
            return None
        try:
            with directories.open_plain(self.cache.path_of(digest) / chunk.path) as file:
                file.seek(chunk.offset_bytes)
                return file.read(chunk.size_bytes)
        except (ArtifactError, OSError):  # evicted meanwhile, or the disk fails
            with self._lock:
                self._whole.pop(digest, None)
            return None

    def _chunks_of(self, digest: Digest) -> dict[str, Chunk] | None:
        with self._lock:
            if (known := self._whole.get(digest)) is not None:
                self._whole.move_to_end(digest)
                return known
        try:
            found, manifest = directories.read_manifest(self.cache.path_of(digest), MODEL_LIMITS)
        except (ArtifactError, OSError):
            return None
        if found != digest:
            return None
        chunks = {chunk.sha256: chunk for chunk in manifest.distinct_chunks()}
        with self._lock:
            self._whole[digest] = chunks
            while len(self._whole) > _MAX_KNOWN:
                self._whole.popitem(last=False)
        return chunks


def bits_of(have: bytes) -> int:
    """Return the bitmap, as an integer with bit 0 for the first chunk, for one byte per chunk that is 1 if it is
    present."""
    return int(have[::-1].translate(_BITS) or b"0", 2)
