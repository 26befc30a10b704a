"""Source of adapters for the reconciler: the node's cache, filled from the store and checked before any load."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, Literal, Protocol, TypeVar

from functions.api.ids import Digest, TenantId
from functions.artifacts import fetch as fetching
from functions.artifacts.adapters import check_adapter
from functions.artifacts.cache import ArtifactCache
from functions.artifacts.signatures import SignaturePolicy, verify_signed
from functions.replica.daemon_threads import in_daemon_thread

# Queues of fetches: separate places for urgent fetches, which a request waits for, and for fetches ahead of need.
# Neither kind uses the other's places. A fetch ahead that waits for a place becomes urgent as soon as a request needs
# it (`hurry`); otherwise a cold load begun ahead would wait behind two slow prefetches. Each kind is first come,
# first served.


Key = TypeVar("Key", bound=Hashable)


@dataclass(slots=True)
class _Queue:
    free: int
    waiting: deque[tuple[Hashable, "asyncio.Future[_Queue]"]] = field(default_factory=deque)

    def serve(self) -> None:
        while self.free and self.waiting:
            _, place = self.waiting.popleft()
            if not place.done():  # else the waiter has given up
                self.free -= 1
                place.set_result(self)


class LoadScheduler(Generic[Key]):
    """Two queues with limited concurrency: urgent fetches, and fetches ahead of need. Owned by one event loop."""

    def __init__(self, *, urgent: int, ahead: int) -> None:
        self._urgent, self._ahead = _Queue(urgent), _Queue(ahead)

    @asynccontextmanager
    async def turn(self, key: Key, *, urgent: bool) -> AsyncIterator[None]:
        place: asyncio.Future[_Queue] = asyncio.get_running_loop().create_future()
        queue = self._urgent if urgent else self._ahead
        queue.waiting.append((key, place))
        queue.serve()
        try:
            await place
            yield
        finally:
            if place.done() and not place.cancelled():
                place.result().free += 1
                place.result().serve()

    def hurry(self, key: Key) -> None:
        """Move the waiting fetches ahead of need for this key to the end of the urgent queue; do nothing if none
        wait."""
        hurried = [entry for entry in self._ahead.waiting if entry[0] == key]
        for entry in hurried:
            self._ahead.waiting.remove(entry)
        self._urgent.waiting.extend(hurried)
        self._urgent.serve()


MAX_URGENT = 4  # concurrent fetches that a request waits for: enough to fill a link, few enough for disk and memory
MAX_AHEAD = 2  # concurrent fetches ahead of need, which never use an urgent one's place

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Obtained:
    path: Path
    tier: Literal["disk", "s3"]  # tier where it was found


class AdapterSource(Protocol):
    async def obtain(self, digest: Digest, tenant: TenantId | None, *, urgent: bool = False) -> Obtained:
        """Return the verified and checked directory of an adapter. Raise ArtifactError if it is unavailable.

        `tenant` owns the model that names it: the signature must be valid for that tenant.
        """

    def hurry(self, digest: Digest) -> None:
        """Make the fetch of this artifact urgent if it waits as one ahead of need."""


@dataclass(slots=True)
class StoreSource:
    store: fetching.ObjectSource
    cache: ArtifactCache
    max_rank: int
    timeout_s: float
    signatures: SignaturePolicy | None = None
    clock: Callable[[], float] = time.monotonic
    _turns: LoadScheduler[Digest] = field(default_factory=lambda: LoadScheduler(urgent=MAX_URGENT, ahead=MAX_AHEAD))
    _flights: dict[Digest, asyncio.Lock] = field(default_factory=dict)

    def set_max_rank(self, max_rank: int) -> bool:
        """Set the largest allowed rank of adapters. Return True if it changed."""
        before, self.max_rank = self.max_rank, max_rank
        return before != max_rank

    async def obtain(self, digest: Digest, tenant: TenantId | None, *, urgent: bool = False) -> Obtained:
        """Return the adapter's verified and checked directory, and from where it came; raise ArtifactError if it is
        unavailable. One fetch at a time per digest: models that share it fetch it once, here and on the whole node."""
        lock = self._flights.setdefault(digest, asyncio.Lock())
        if urgent:
            self.hurry(digest)
        async with lock, self._turns.turn(digest, urgent=urgent):
            try:
                return await in_daemon_thread(f"fetch {digest[:19]}", lambda: self._obtain(digest, tenant))
            finally:
                if self._flights.get(digest) is lock:
                    del self._flights[digest]

    def hurry(self, digest: Digest) -> None:
        self._turns.hurry(digest)

    def _obtain(self, digest: Digest, tenant: TenantId | None) -> Obtained:
        started_s = self.clock()
        fetched: list[Digest] = []
        path = fetching.fetch(
            self.store, self.cache, digest, timeout_s=self.timeout_s, on_fetch=lambda: fetched.append(digest)
        ).absolute()
        tier: Literal["disk", "s3"] = "s3" if fetched else "disk"
        facts = check_adapter(path, max_rank=self.max_rank)
        if self.signatures is not None:
            verify_signed(path, tenant, self.signatures)
        took_ms = (self.clock() - started_s) * 1000
        _log.info(
            "adapter %s: rank %d, %d bytes, from %s in %.0f ms", digest, facts.rank, facts.weights_bytes, tier, took_ms
        )
        return Obtained(path, tier)
