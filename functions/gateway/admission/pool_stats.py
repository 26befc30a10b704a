"""Activity of each pool at this gateway over the last half minute, for autoscaling.

Events are counted in slots of a few seconds, and the latest slots form the window. Adding an event costs two dict
look-ups. The slots are summed once a second (`heartbeats`). A pool without recent requests is still reported, with
zeros.

The expected wait is that of a new request that is not batch, because batch requests wait by design. It is the queued
cost ahead divided by the pool's drain rate, if that is known, and at least the time that the oldest request has
waited. A prefill pool has no queue here. Its wait is the mean predicted wait of the last prompts at its replicas,
including prompts that therefore went elsewhere (test_prefill_pool_wait_is_the_mean_of_its_prompts). Worked example
(test_expected_wait_uses_drain_rate_or_oldest_wait): 6,000 tokens wait and 2 replicas drain 1,000 a second each: 3 s.
If the oldest request has waited for 4 s, the wait is 4 s. The expected wait is at most one hour.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from functions.api.ids import PoolName
from functions.decisions.admission.queue import Admission
from functions.decisions.autoscaling.signals import is_overflow
from functions.decisions.overload.ladder import OFF, Rungs
from functions.decisions.quantile_sketch import QuantileSketch
from functions.fleet.pool_heartbeat import MAX_POOLS_PER_HEARTBEAT, WHY_MAX_CHARS, PoolHeartbeat, PoolStats
from functions.gateway.request.request import Admitted, Ended
from functions.gateway.routing.fallback import Degraded
from functions.telemetry.gap_histogram import SKETCH_BUCKETS

_NO_LADDERS: Mapping[PoolName, Rungs] = MappingProxyType({})
SLOT_S = 5.0
SLOTS = 6
MAX_POOLS = 4096
_LEAST_WINDOW_S = 1.0
_MOST_WAIT_S = 3600.0
_FOREGROUND = 2  # number of foreground bands: interactive and near-real-time


@dataclass(slots=True)
class _Slot:
    number: int  # number of the slot since the clock's zero
    arrivals: int = 0
    arriving_tokens: int = 0
    deferrable_tokens: int = 0
    shed: int = 0
    overflow: int = 0
    degraded: int = 0
    ttft: QuantileSketch = field(default_factory=QuantileSketch)
    gaps: QuantileSketch = field(default_factory=QuantileSketch)
    prompts: int = 0  # prompts for a prefill pool, without batch
    prompts_wait_s: float = 0.0  # sum of their predicted waits


class PoolActivity:
    """Counts of recent events per pool. Owned by one event loop; times are monotonic seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._since_s = clock()
        self._slots: dict[PoolName, deque[_Slot]] = {}
        self._sequence = 0

    def arrived(self, pool: PoolName, tokens: int, *, deferrable: bool = False, requests: int = 1) -> None:
        """Count requests that arrive at the pool and their `tokens`. Negative numbers undo a count.

        `deferrable` requests are batch and may wait for minutes.
        """
        slot = self._slot(pool)
        slot.arrivals += requests
        slot.arriving_tokens += tokens
        if deferrable:
            slot.deferrable_tokens += tokens

    def shed(self, admitted: Admitted, reason: str, degraded: Degraded | None) -> None:
        """Count a rejected request in the pool that rejected it, and in the requested pool if that is another one.

        `reason` is a label of shoal_shed_total.
        """
        self._shed(admitted.model.pool, reason, admitted.service_class)
        if degraded is not None and (asked := degraded.requested.model.pool) != admitted.model.pool:
            self._shed(asked, degraded.why, admitted.service_class)

    def _shed(self, pool: PoolName, reason: str, service_class: str) -> None:
        slot = self._slot(pool)
        slot.shed += 1
        slot.overflow += is_overflow(reason, is_batch=service_class == "batch")

    def degraded(self, pool: PoolName) -> None:
        """Count a request as degraded in this pool, because another pool answers it."""
        self._slot(pool).degraded += 1

    # prefill pools, which are used only by `request.split`

    def prompt_arrived(self, asking: Admitted, wait_s: float, *, is_read: bool) -> None:
        """Count a prompt that arrives at a prefill pool, and unless it is batch its predicted wait.

        Without `is_read`, it counts as degraded too, because another pool computes it.
        """
        pool, is_batch = asking.model.pool, asking.service_class == "batch"
        self.arrived(pool, asking.features.prompt_tokens, deferrable=is_batch)
        if not is_batch:
            slot = self._slot(pool)
            slot.prompts += 1
            slot.prompts_wait_s += wait_s
        if not is_read:
            self.degraded(pool)

    def prompt_read(self, asking: Admitted, took_s: float) -> None:
        """Record the time that an interactive prefill took as its time to first token; other classes are ignored."""
        if asking.service_class == "interactive":
            self._slot(asking.model.pool).ttft.add(took_s * 1000)

    def prompt_lost(self, asking: Admitted) -> None:
        """Count a prefill that came to nothing as degraded in its prefill pool."""
        self.degraded(asking.model.pool)

    def ended(self, ended: Ended) -> None:
        admitted, timeline = ended.admitted, ended.timeline
        if not timeline.first_token_s:
            return
        slot = self._slot(admitted.model.pool)
        if admitted.service_class == "interactive":
            slot.ttft.add((timeline.first_token_s - timeline.received_s) * 1000)
        for gap, times in ended.token_gaps:
            slot.gaps.add_to(SKETCH_BUCKETS[gap], times)

    def heartbeats(
        self,
        sender: tuple[str, int],
        now_unix_s: float,
        pools: Iterable[PoolName],
        rooms: Mapping[PoolName, Admission],
        ladders: Mapping[PoolName, Rungs] = _NO_LADDERS,
    ) -> list[PoolHeartbeat]:
        """Return the heartbeats for these pools and for other recently requested ones, split into messages.

        `sender` is the gateway's id and its process's incarnation.
        """
        now_s = self._clock()
        self._update_pools(set(pools), now_s)
        self._sequence += 1
        told = [self._stats(pool, rooms.get(pool), ladders.get(pool, OFF), now_s) for pool in sorted(self._slots)]
        parts = [told[at : at + MAX_POOLS_PER_HEARTBEAT] for at in range(0, len(told), MAX_POOLS_PER_HEARTBEAT)]
        return [PoolHeartbeat(*sender, self._sequence, now_unix_s, tuple(part)) for part in parts]

    # internals

    def _slot(self, pool: PoolName) -> _Slot:
        number = int(self._clock() // SLOT_S)
        slots = self._slots.get(pool)
        if slots is None:
            if len(self._slots) >= MAX_POOLS:
                return _Slot(number)  # a throwaway slot: the table of pools is full
            slots = self._slots[pool] = deque(maxlen=SLOTS)
        if not slots or slots[-1].number != number:
            slots.append(_Slot(number))
        return slots[-1]

    def _stats(self, pool: PoolName, admission: Admission | None, rungs: Rungs, now_s: float) -> PoolStats:
        first = int(now_s // SLOT_S) - SLOTS + 1
        slots = [slot for slot in self._slots[pool] if slot.number >= first]
        ttft, gaps = QuantileSketch(), QuantileSketch()
        for slot in slots:
            ttft.merge(slot.ttft)
            gaps.merge(slot.gaps)
        return PoolStats(
            pool=pool,
            window_s=max(_LEAST_WINDOW_S, min(now_s - first * SLOT_S, now_s - self._since_s)),
            arrivals=sum(slot.arrivals for slot in slots),
            arriving_tokens=sum(slot.arriving_tokens for slot in slots),
            deferrable_tokens=sum(slot.deferrable_tokens for slot in slots),
            shed=sum(slot.shed for slot in slots),
            overflow=sum(slot.overflow for slot in slots),
            degraded=sum(slot.degraded for slot in slots),
            ttft_ms=ttft.buckets(),
            gap_ms=gaps.buckets(),
            queue_s=expected_wait_s(admission, now_s) if admission is not None else _prompts_wait_s(slots),
            queued_tokens=_queued_tokens(admission, None),
            foreground_queued_tokens=_queued_tokens(admission, _FOREGROUND),
            rungs=rungs.on,
            why=rungs.why[:WHY_MAX_CHARS],
        )

    def _update_pools(self, pools: set[PoolName], now_s: float) -> None:
        """Update which pools are reported: these (at most MAX_POOLS in all), and others with recent requests."""
        first = int(now_s // SLOT_S) - SLOTS + 1
        for pool, slots in list(self._slots.items()):
            if pool not in pools and not any(slot.number >= first for slot in slots):
                del self._slots[pool]
        for pool in pools - self._slots.keys():
            if len(self._slots) < MAX_POOLS:
                self._slots[pool] = deque(maxlen=SLOTS)


def _prompts_wait_s(slots: Sequence[_Slot]) -> float:
    prompts = sum(slot.prompts for slot in slots)
    return min(_MOST_WAIT_S, sum(slot.prompts_wait_s for slot in slots) / prompts) if prompts else 0.0


def _queued_tokens(admission: Admission | None, bands: int | None) -> int:
    return sum(queue.queued_kv_tokens for queue in admission.queues[:bands]) if admission is not None else 0


def expected_wait_s(admission: Admission, now_s: float) -> float:
    """Return the expected wait of one more request that is not batch, at most _MOST_WAIT_S.

    This is the larger of the oldest waiting request's wait and the queued cost divided by the drain rate.
    """
    foreground = admission.queues[:_FOREGROUND]
    oldest_s = [since_s for queue in foreground if (since_s := queue.oldest_arrived_s()) is not None]
    waited_s = max((now_s - since_s for since_s in oldest_s), default=0.0)
    per_s = admission.drain.per_replica * admission.gate.replicas
    ahead_s = sum(queue.queued_cost for queue in foreground) / per_s if per_s > 0.0 else 0.0
    return min(_MOST_WAIT_S, max(0.0, waited_s, ahead_s))
