"""Where the reconciler gets an adapter: the node's cache, filled from the store, checked before anyone may load it."""

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

# Who may work now: places for what somebody waits for, and places of their own for what is done ahead of need.
#
# Law: neither kind takes the other's places, and who waits for a place ahead moves to the urgent ones as soon as
# somebody needs what it works on (`hurry`): else a cold load that was begun ahead would stand behind two slow
# prefetches. First come, first served within a kind.


Key = TypeVar("Key", bound=Hashable)


@dataclass(slots=True)
class _Queue:
    free: int
    waiting: deque[tuple[Hashable, "asyncio.Future[_Queue]"]] = field(default_factory=deque)

    def serve(self) -> None:
        while self.free and self.waiting:
            _, place = self.waiting.popleft()
            if not place.done():  # else it was given up
                self.free -= 1
                place.set_result(self)


class LoadScheduler(Generic[Key]):
    """Owned by one event loop."""

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
        """What waits ahead for this key is urgent now; nothing need."""
        hurried = [entry for entry in self._ahead.waiting if entry[0] == key]
        for entry in hurried:
            self._ahead.waiting.remove(entry)
        self._urgent.waiting.extend(hurried)
        self._urgent.serve()


MAX_URGENT = 4  # fetches at once that a request waits for: enough to fill a link, few enough for disk and memory
MAX_AHEAD = 2  # fetches ahead of need: they never take an urgent one's place

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Obtained:
    path: Path
    tier: Literal["disk", "s3"]  # where it was


class AdapterSource(Protocol):
    async def obtain(self, digest: Digest, tenant: TenantId | None, *, urgent: bool = False) -> Obtained:
        """The verified and checked directory of an adapter; ArtifactError where there is none to be had.

        `tenant` is whose model names it: its signature must be one that counts for that tenant.
        """

    def hurry(self, digest: Digest) -> None:
        """Somebody waits for what was asked for ahead of need, if it was."""


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

    def allow(self, max_rank: int) -> bool:
        """Adapters up to this rank, from now on; whether that is another than before."""
        before, self.max_rank = self.max_rank, max_rank
        return before != max_rank

    async def obtain(self, digest: Digest, tenant: TenantId | None, *, urgent: bool = False) -> Obtained:
        """Single flight by digest: two models that share an artifact fetch it once, here and on the whole node."""
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
