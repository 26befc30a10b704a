"""Fetch an artifact by its digest. Nothing is visible under the digest until every byte has been verified.

    1 read the manifest, verify it against the digest
    2 lay the files out, or resume a killed fetch (`assembly`)
    3 read the missing chunks, several at a time, and verify each when it arrives
    4 hash the files on the disk, fsync, rename the whole directory to its digest

One process of a node fetches a digest at a time; others wait and then find it in the cache. Blocks: run it in a
thread.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from functions.api.ids import Digest
from functions.artifacts import manifest as manifests
from functions.artifacts.assembly import Assembly
from functions.artifacts.cache import ArtifactCache
from functions.artifacts.errors import ArtifactCorrupt, ArtifactMissing, CacheFailed, StoreUnavailable
from functions.artifacts.locations import chunk_key, manifest_key
from functions.artifacts.manifest import ADAPTER_LIMITS, MANIFEST_MAX_BYTES, Chunk, ManifestLimits
from functions.artifacts.workers import run_all

DEFAULT_TIMEOUT_S = 300.0  # a 200 MB adapter at 1 MB/s, with room; a slow store must not block a thread for ever
PARALLEL_CHUNKS = 4  # 32 MiB in memory at the default chunk size
_READS_OF_A_CHUNK = 2  # a chunk that arrives corrupt is read once more, since bits may flip in transit


class ChunkSource(Protocol):
    def read(self, chunk: Chunk) -> bytes:
        """Return the chunk's bytes, unverified; raise ArtifactError if they are unavailable. Many threads call this."""


class ObjectSource(Protocol):
    """Source of manifests and chunks by key: a store, or another region's registry."""

    def read_small(self, key: str, max_bytes: int) -> bytes:
        """Return a whole object; raise ArtifactMissing, ArtifactCorrupt if it is larger, or StoreUnavailable."""

    def stream(self, key: str, max_bytes: int) -> Iterator[bytes]:
        """Yield a whole object in blocks, with the errors of `read_small`."""


@dataclass(frozen=True, slots=True)
class StoreChunks:
    """Chunks read directly from the store."""

    store: ObjectSource
    check_time: Callable[[], None]

    def read(self, chunk: Chunk) -> bytes:
        content = bytearray()
        for block in self.store.stream(chunk_key(chunk.sha256), chunk.size_bytes):
            self.check_time()
            content += block
        return bytes(content)


def fetch(
    store: ObjectSource,
    cache: ArtifactCache,
    digest: Digest,
    *,
    limits: ManifestLimits = ADAPTER_LIMITS,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    clock: Callable[[], float] = time.monotonic,
    on_fetch: Callable[[], None] = lambda: None,
) -> Path:
    """Return the artifact's verified directory in the cache, fetching it from `store` if it is missing or corrupt
    there. `on_fetch` is called before a fetch. Raise ArtifactError if that fails or takes longer than `timeout_s`."""
    cached = from_cache(cache, digest, limits)
    if cached is not None:
        return cached
    deadline = _Deadline(digest, clock() + timeout_s, clock)
    with cache.single_flight(digest, timeout_s=timeout_s, clock=clock):
        cached = from_cache(cache, digest, limits)  # may have been fetched by the previous holder of the lock
        if cached is not None:
            return cached
        on_fetch()
        document = read_manifest(store, digest)
        assembly = Assembly.open(cache, digest, document, limits)
        source = StoreChunks(store, deadline.check)
        fill(assembly, source)
        try:
            return assembly.finish()
        except ArtifactCorrupt:  # a power cut lost chunks of an earlier fetch: they are missing now
            fill(assembly, source)
            return assembly.finish()


def from_cache(cache: ArtifactCache, digest: Digest, limits: ManifestLimits = ADAPTER_LIMITS) -> Path | None:
    """Return the cached directory, verified and marked as used, or None if it is missing or corrupt.

    A corrupt directory stays until a sound one replaces it: an engine that has loaded it may read it again at any
    time, and would die of its absence.
    """
    try:
        with cache.use(digest):  # an eviction during the check would look like corruption
            return cache.verified(digest, limits)
    except (ArtifactMissing, ArtifactCorrupt):
        return None
    except OSError as error:
        raise CacheFailed(f"{digest} cannot be read from the cache: {error.strerror}") from error


def read_manifest(store: ObjectSource, digest: Digest) -> bytes:
    """Return the manifest's bytes from the store, unverified: `Assembly.open` verifies them."""
    return store.read_small(manifest_key(manifests.hex_of(digest)), MANIFEST_MAX_BYTES)


def fill(assembly: Assembly, source: ChunkSource, *, parallel: int = PARALLEL_CHUNKS) -> None:
    """Put every missing chunk into the assembly, read from `source`; a chunk that arrives corrupt is read again,
    _READS_OF_A_CHUNK times in all."""

    def obtain(chunk: Chunk) -> None:
        for attempt in range(1, _READS_OF_A_CHUNK + 1):
            try:
                assembly.put(chunk, source.read(chunk))
            except ArtifactCorrupt:
                if attempt == _READS_OF_A_CHUNK:
                    raise
            else:
                return

    run_all(obtain, assembly.missing(), parallel=parallel)


class _Deadline:
    def __init__(self, digest: Digest, at_s: float, clock: Callable[[], float]) -> None:
        self._digest, self._at_s, self._clock = digest, at_s, clock

    def check(self) -> None:
        if self._clock() >= self._at_s:
            raise StoreUnavailable(f"{self._digest} did not arrive in time; the store is too slow")
