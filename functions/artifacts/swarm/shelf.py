"""Chunks that this node can give to others: whole artifacts of its cache, and what its unfinished ones have so far.

A chunk is asked for together with its artifact, so that nothing has to be indexed but the artifacts that are asked for
(an LRU of their manifests). A whole chunk is read at a time: the uploads that may run at once bound the memory. What
is read is not hashed here: the receiver does that, and a disk that rots is found by the agent's own checks. All calls
block on the disk, except `have`.
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
        """Give from this one too while it is being put together."""
        with self._lock:
            self._assemblies[assembly.digest] = assembly

    def remove(self, digest: Digest) -> None:
        """Its assembly has ended, one way or the other."""
        with self._lock:
            self._assemblies.pop(digest, None)

    def have(self, digest: Digest) -> tuple[int, int] | None:
        """The bitmap of what is here and the number of chunks, of an artifact that was asked for before."""
        with self._lock:
            assembly, whole = self._assemblies.get(digest), self._whole.get(digest)
        if assembly is not None:
            return bits_of(assembly.have), len(assembly.chunks)
        return None if whole is None else (full(len(whole)), len(whole))

    def read(self, digest: Digest, sha256: str) -> bytes | None:
        """A chunk's bytes; None where it is not here."""
        with self._lock:
            assembly = self._assemblies.get(digest)
        if assembly is not None and (content := assembly.read(sha256)) is not None:
            return content
        return self._from_cache(digest, sha256)

    def find(self, digest: Digest) -> bool:
        """Whether anything of the artifact is here; makes `have` know of a whole one."""
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
        except (ArtifactError, OSError):  # evicted meanwhile, or the disk fails: either way not here
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
    """A bitmap from one byte a chunk, 1 where it is there."""
    return int(have[::-1].translate(_BITS) or b"0", 2)
