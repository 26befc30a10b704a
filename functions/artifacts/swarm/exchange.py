"""Loop of one download: carry out the requests of `decisions.distribution.swarm` until no chunk is missing.

    1 request  every `PeerRequest` becomes a task: read from peer or store, verify, write
    2 wait     until one ends, an update comes from the tracker, or a tick passes (back-offs end without an event)
    3 settle   report how each ended; cancel other requests for a chunk that has arrived

Meanwhile `_announce` updates the tracker, and `_poll_peers` polls the peers while the tracker is unavailable.
"""

import asyncio
import contextlib
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from random import Random
from typing import TypeVar

from functions.artifacts.assembly import Assembly
from functions.artifacts.errors import ArtifactCorrupt, ArtifactError, ArtifactMissing, FetchUnderway, StoreUnavailable
from functions.artifacts.swarm.chunk_clients import Origin, PeerClient, PeerFailed
from functions.artifacts.swarm.protocol import TrackerClient, TrackerUnavailable
from functions.decisions.distribution.peers import PeerFailure
from functions.decisions.distribution.swarm import PeerRequest, Swarm
from functions.decisions.distribution.tracker import Announcement

T = TypeVar("T")
_DISK_THREADS = 4


@dataclass(slots=True)
class Threads:
    """Thread pools of one download: a few threads for disk and sha256, one thread per parallel read of the store."""

    store_reads: int
    _stopped: threading.Event = field(default_factory=threading.Event)
    _disk: ThreadPoolExecutor = field(init=False)
    _store: ThreadPoolExecutor = field(init=False)

    def __post_init__(self) -> None:
        self._disk = ThreadPoolExecutor(_DISK_THREADS, "chunks to disk")
        self._store = ThreadPoolExecutor(self.store_reads, "chunks from the store")

    async def on_disk(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._disk, work)

    async def at_store(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._store, work)

    def sleep(self, seconds: float) -> None:
        """Wait the seconds in a thread; raise FetchUnderway once the download is stopped."""
        if self._stopped.wait(seconds):
            raise FetchUnderway("the fetch was cancelled while it waited")

    def stop(self) -> None:
        """Cancel all work: running calls end at their next step, queued ones never start."""
        self._stopped.set()
        self._disk.shutdown(wait=False, cancel_futures=True)
        self._store.shutdown(wait=False, cancel_futures=True)


_TICK_S = 0.2
_EARLY_S = 0.25  # minimum interval of early announcements by a node without requests in flight
TRACKER_RETRY_S = 2.0
_POLL_PEERS_S = 2.0
_BAD_ORIGIN_READS = 3  # per chunk: then the store's copy is bad or missing, and waiting does not help

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class DownloadProgress:
    """Progress for users and measurements. Bytes are those of verified and written chunks."""

    chunks: int = 0
    have: int = 0
    resumed: int = 0
    from_peers_bytes: int = 0
    from_store_bytes: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    nodes: int = 0


@dataclass(frozen=True, slots=True)
class _Ended:
    """Result of one request. No failure means that the chunk is written."""

    failure: PeerFailure | None = None
    detail: str = ""
    after_s: float = 0.0
    store_is_bad: bool = False
    fatal: ArtifactError | None = None


@dataclass(slots=True)
class Exchange:
    assembly: Assembly
    swarm: Swarm
    peers: PeerClient
    origin: Origin
    tracker: TrackerClient | None
    threads: Threads
    rng: Random
    progress: DownloadProgress
    clock: Callable[[], float] = time.monotonic
    _updated: asyncio.Event = field(default_factory=asyncio.Event)
    _hungry: asyncio.Event = field(default_factory=asyncio.Event)
    _bad_reads: Counter[int] = field(default_factory=Counter)
    _running: dict[asyncio.Task[_Ended], PeerRequest] = field(default_factory=dict)

    async def run(self) -> None:
        """Fetch chunks from peers and the store until none is missing; raise ArtifactError if one cannot be fetched."""
        async with asyncio.TaskGroup() as group:
            beside = [group.create_task(self._announce()), group.create_task(self._poll_peers())]
            try:
                failed = await self._loop(group)
            finally:
                for task in [*beside, *self._running]:
                    task.cancel()
        if failed is not None:  # raised here, so that the task group does not wrap it
            raise failed

    async def _loop(self, group: asyncio.TaskGroup) -> ArtifactError | None:
        while self.swarm.missing:
            for ask in self.swarm.next(self.clock(), self.rng):
                self._running[group.create_task(self._carry_out(ask))] = ask
            if not self._running:
                self._hungry.set()
            await self._something()
            for task in [task for task in self._running if task.done()]:
                ask = self._running.pop(task)
                if (failed := self._settle(ask, task)) is not None:
                    return failed
            self.progress.have = self.swarm.have.bit_count()
        return None

    async def _something(self) -> None:
        if self._running:
            await asyncio.wait(self._running, timeout=_TICK_S, return_when=asyncio.FIRST_COMPLETED)
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_TICK_S):
                await self._updated.wait()
        self._updated.clear()

    async def _carry_out(self, ask: PeerRequest) -> _Ended:
        chunk = self.assembly.chunks[ask.chunk]
        try:
            if ask.peer is None:
                content = await self.threads.at_store(lambda: self.origin.read(chunk, self.threads.sleep))
            else:
                received = await self.peers.read(ask.peer, chunk)
                content = received.content
                if received.have is not None:
                    self.swarm.peers.add_chunks(ask.peer, received.have)
        except PeerFailed as error:
            return _Ended(error.failure, error.detail, error.after_s)
        except StoreUnavailable as error:
            return _Ended(PeerFailure.BROKEN, str(error))
        except (ArtifactMissing, ArtifactCorrupt) as error:
            return _Ended(PeerFailure.LACKS, str(error), store_is_bad=True)
        try:
            await self.threads.on_disk(lambda: self.assembly.put(chunk, content))
        except ArtifactCorrupt as error:
            return _Ended(PeerFailure.CORRUPT, str(error), store_is_bad=ask.peer is None)
        except ArtifactError as error:  # the local disk failed: other sources do not help
            return _Ended(fatal=error)
        return _Ended()

    def _settle(self, ask: PeerRequest, task: asyncio.Task[_Ended]) -> ArtifactError | None:
        """Record how one chunk request ended. Return the error if the download cannot succeed, else None."""
        if task.cancelled():
            self.swarm.cancel_request(ask)
            return None
        ended, now_s = task.result(), self.clock()
        if ended.fatal is not None:
            return ended.fatal
        if ended.failure is None:
            self._arrived(ask, now_s)
            return None
        whence = ask.peer or "store"
        self.progress.failures[f"{'peer' if ask.peer else 'store'} {ended.failure.value}"] += 1
        if ended.failure is PeerFailure.CORRUPT:
            _log.warning("%s sent chunk %d corrupt: %s", whence, ask.chunk, ended.detail)
        elif ended.failure is not PeerFailure.BUSY:
            _log.info("chunk %d from %s: %s: %s", ask.chunk, whence, ended.failure.value, ended.detail)
        after_s = ended.after_s * (0.5 + self.rng.random())  # spreads the retries of peers that were busy
        self.swarm.record_failure(ask, ended.failure, now_s, after_s=after_s, found=ended.detail)
        if ended.store_is_bad:
            self._bad_reads[ask.chunk] += 1
            if self._bad_reads[ask.chunk] >= _BAD_ORIGIN_READS:
                return ArtifactCorrupt(f"the store's copy is bad, publish it again: {ended.detail}")
        return None

    def _arrived(self, ask: PeerRequest, now_s: float) -> None:
        size_bytes = self.assembly.chunks[ask.chunk].size_bytes
        if ask.peer is None:
            self.progress.from_store_bytes += size_bytes
        else:
            self.progress.from_peers_bytes += size_bytes
        useless = {other.number for other in self.swarm.record_chunk(ask, now_s)}
        for task, other in self._running.items():
            if other.number in useless:
                task.cancel()

    async def _announce(self) -> None:
        if self.tracker is None:
            self.swarm.has_no_tracker()
            return
        said = ""
        while True:
            self._hungry.clear()
            again_after_s = TRACKER_RETRY_S
            try:
                answer = await self.tracker.announce(self._announcement())
            except TrackerUnavailable as error:
                self.swarm.tracker_failed()
                if str(error) != said:
                    _log.warning("%s; continuing with %d peers and the store", error, len(self.swarm.peers))
                    said = str(error)
            else:
                self.swarm.apply_tracker_answer(answer, self.clock())
                self.progress.nodes = answer.nodes
                again_after_s, said = answer.again_after_s, ""
                self._updated.set()
            early_s = min(again_after_s, max(_EARLY_S, again_after_s / 4))
            await asyncio.sleep(early_s)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(again_after_s - early_s):
                    await self._hungry.wait()

    def _announcement(self) -> Announcement:
        swarm = self.swarm
        room = max(0, 2 * swarm.policy.origin_requests - swarm.grants.bit_count())
        return Announcement(swarm.me, swarm.zone, swarm.have, room, swarm.avoided(self.clock()))

    async def _poll_peers(self) -> None:
        """Poll the peers' bitmaps, for ever, while the tracker is unavailable, since nothing else reports them."""
        while True:
            await asyncio.sleep(_POLL_PEERS_S)
            if not self.swarm.is_alone(self.clock()):
                continue
            for peer in self.swarm.peers.usable(self.swarm.policy.max_per_peer, self.clock()):
                with contextlib.suppress(PeerFailed):
                    self.swarm.peers.add_chunks(peer.address, await self.peers.have(peer.address))
