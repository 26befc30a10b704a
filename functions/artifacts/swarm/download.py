"""Fetch one artifact together with other nodes that fetch it.

    1 check the cache; become the only fetcher on this node (single flight); read and verify the manifest
    2 resume a killed fetch, and offer its chunks to other nodes from now on
    3 exchange: chunks from peers and store until none is missing
    4 hash the whole, rename it to its digest; fetch chunks again that turn out bad on the disk
    5 stay as a seed for as long as the caller wants, then announce the departure

One `Download` belongs to one event loop; disk, store and sha256 run in threads. Cancelling `run` ends everything, and
verified chunks remain. Related modules: exchange (the loop), decisions.distribution (what to request next),
replica.chunk_routes (requests of other nodes), fetch (the same for adapters, from the store alone).
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import httpx

from functions.api.ids import Digest
from functions.artifacts import directories
from functions.artifacts import fetch as fetching
from functions.artifacts import manifest as manifests
from functions.artifacts.assembly import Assembly
from functions.artifacts.cache import ArtifactCache
from functions.artifacts.errors import ArtifactCorrupt, StoreUnavailable
from functions.artifacts.manifest import MODEL_LIMITS
from functions.artifacts.swarm.addresses import is_loopback
from functions.artifacts.swarm.chunk_clients import MIN_PEER_BYTES_PER_S, Bandwidth, Origin, PeerClient
from functions.artifacts.swarm.exchange import DownloadProgress, Exchange, Threads
from functions.artifacts.swarm.protocol import TrackerClient, TrackerUnavailable
from functions.artifacts.swarm.shelf import ChunkShelf, bits_of
from functions.decisions.distribution.chunk_bits import full
from functions.decisions.distribution.swarm import Swarm, SwarmPolicy
from functions.decisions.distribution.tracker import Announcement
from functions.decisions.health.backoff import BackoffPolicy, delay_s

FLIGHT_TIMEOUT_S = 7200.0  # another process of this node may fetch 140 GB at 20 MB/s
_FINISH_TRIES = 3
_MANIFEST_BACKOFF = BackoffPolicy(base_s=0.5, cap_s=8.0)
_SEED_RETRY_S = 2.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DownloadNode:
    """This node's public address and zone."""

    address: str  # ip:port where chunk_routes are served
    zone: str = ""


@dataclass(slots=True)
class Download:
    """Download of one artifact. `registry` (None: the store alone) and `peers_http` carry the installation's token."""

    digest: Digest
    node: DownloadNode
    cache: ArtifactCache
    shelf: ChunkShelf
    origin: Origin
    registry: httpx.AsyncClient | None
    peers_http: httpx.AsyncClient
    rate: Bandwidth
    rng: Random
    policy: SwarmPolicy = field(default_factory=SwarmPolicy)
    clock: Callable[[], float] = time.monotonic
    progress: DownloadProgress = field(default_factory=DownloadProgress)
    cache_max_bytes: int | None = None  # None means that only the disk limits it
    _threads: Threads = field(init=False)

    def __post_init__(self) -> None:
        self._threads = Threads(self.policy.origin_requests)

    async def run(self) -> Path:
        """Return the artifact's verified directory, from the cache or by downloading it; raise ArtifactError if it
        cannot be fetched."""
        try:
            return await self._cached() or await self._alone_on_this_node()
        finally:
            self._threads.stop()

    async def seed(self, seconds: float, stopped: asyncio.Event) -> None:
        """Announce this node to the tracker as a seed for `seconds` or until `stopped` is set, then announce its
        departure; without a registry, do nothing. Chunks are served while the server runs, announced or not."""
        if self.registry is None:
            return
        _, manifest = await asyncio.to_thread(self._read_cached_manifest)
        tracker = self._tracker(self.registry, len(manifest.distinct_chunks()))
        everything = Announcement(self.node.address, self.node.zone, full(tracker.count))
        until_s = self.clock() + seconds
        while not stopped.is_set() and (left_s := until_s - self.clock()) > 0:
            again_after_s = _SEED_RETRY_S
            with contextlib.suppress(TrackerUnavailable):
                again_after_s = (await tracker.announce(everything)).again_after_s
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(left_s, again_after_s)):
                    await stopped.wait()
        with contextlib.suppress(TrackerUnavailable):
            await tracker.announce(everything, leaving=True)

    async def _cached(self) -> Path | None:
        return await self._threads.on_disk(lambda: fetching.from_cache(self.cache, self.digest, MODEL_LIMITS))

    async def _alone_on_this_node(self) -> Path:
        flight = self.cache.single_flight(self.digest, timeout_s=FLIGHT_TIMEOUT_S, sleep=self._threads.sleep)
        await self._threads.on_disk(flight.__enter__)
        try:
            return await self._cached() or await self._assemble()
        finally:
            flight.__exit__(None, None, None)

    async def _assemble(self) -> Path:
        document = await self._manifest()
        on_disk = self._threads.on_disk
        await on_disk(lambda: self._make_room(document))
        assembly = await on_disk(lambda: Assembly.open(self.cache, self.digest, document, MODEL_LIMITS))
        self.progress.chunks, self.progress.resumed = len(assembly.chunks), assembly.have.count(1)
        self.shelf.add(assembly)
        try:
            for _ in range(_FINISH_TRIES):
                await self._exchange(assembly).run()
                try:
                    return await on_disk(assembly.finish)
                except ArtifactCorrupt as error:
                    _log.warning("%s; the bad chunks are fetched again", error)
            raise ArtifactCorrupt(f"{self.digest} is corrupted on the disk again and again: check the disk")
        finally:
            self.shelf.remove(self.digest)

    def _make_room(self, document: bytes) -> None:
        """If the cache has a limit, evict before the download so that it stays within it. Artifacts in use are
        spared."""
        if self.cache_max_bytes is None:
            return
        needed_bytes = manifests.decode_verified(document, self.digest, MODEL_LIMITS).total_bytes
        evicted = self.cache.make_room(self.digest, needed_bytes, self.cache_max_bytes)
        if evicted:
            _log.info("%d artifacts were evicted for %s", len(evicted), self.digest[:19])

    def _exchange(self, assembly: Assembly) -> Exchange:
        count, have = len(assembly.chunks), bits_of(assembly.have)
        swarm = Swarm(self.node.address, self.node.zone, count, have, self.clock(), self.policy)
        slowest = float(MIN_PEER_BYTES_PER_S)
        if self.rate.bytes_per_s is not None:  # our own rate limit, shared by all requests in flight
            slowest = min(slowest, self.rate.bytes_per_s / (4 * self.policy.max_requests))
        return Exchange(
            assembly,
            swarm,
            PeerClient(self.peers_http, self.digest, count, self.rate, slowest),
            self.origin,
            None if self.registry is None else self._tracker(self.registry, count),
            self._threads,
            self.rng,
            self.progress,
            self.clock,
        )

    async def _manifest(self) -> bytes:
        """Read the manifest's document; while the store is unavailable, retry until the caller cancels."""
        failures = 0
        while True:
            try:
                return await self._threads.at_store(lambda: fetching.read_manifest(self.origin.store, self.digest))
            except StoreUnavailable as error:
                failures += 1
                wait_s = delay_s(failures, _MANIFEST_BACKOFF) * (0.5 + self.rng.random())
                _log.warning("%s; retry in %.1f s", error, wait_s)
                await asyncio.sleep(wait_s)

    def _tracker(self, registry: httpx.AsyncClient, count: int) -> TrackerClient:
        return TrackerClient(registry, self.digest, count, is_loopback(self.node.address.rpartition(":")[0]))

    def _read_cached_manifest(self) -> tuple[Digest, manifests.Manifest]:
        return directories.read_manifest(self.cache.path_of(self.digest), MODEL_LIMITS)
