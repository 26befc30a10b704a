"""One replica in virtual time: the simulated engine's core, and its agent's real plan for its adapters.

The agent plans once a second and after every change, as `functions.replica.reconciler` does. There is no disk and no
store: a fetch is assumed to take DISK_S or STORE_S. Adapters load one at a time, and a load stalls the engine as it
stalls a real one.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from xxhash import xxh3_64_intdigest

from functions.api.ids import Digest, EngineName, PoolName, ReplicaId
from functions.decisions.adapters import plan as agents
from functions.decisions.adapters.plan import (
    AdapterDemand,
    AdapterPolicy,
    AdapterState,
    ColdLoad,
    EngineAdapters,
    WantedAdapter,
)
from functions.decisions.distribution import bloom
from functions.decisions.health.engine_rates import EngineRates, RateCounters, update
from functions.decisions.routing.own_load import InFlightSlot
from functions.engines.sim.adapters import AdapterId
from functions.engines.sim.core import EngineCore
from functions.fleet.heartbeat import Heartbeat

POOL = PoolName("base")
DISK_S, STORE_S = 0.03, 0.15  # assumed time to fetch the files from the node's disk or from the store
_COLD_LOAD_S = 15.0


def adapter_name(number: int) -> EngineName:
    return EngineName(f"acme/a-{number:05d}@sha256:{_digits(number)}")


def adapter_digest(number: int) -> Digest:
    return Digest(f"sha256:{_digits(number)}" + "0" * 48)


def _digits(number: int) -> str:
    return f"{xxh3_64_intdigest(b'%d' % number):016x}"


def demand(count: int) -> AdapterDemand:
    """Return the demand for `count` adapters, all with a channel and none in a rollout."""
    return AdapterDemand.from_ranked(
        WantedAdapter(adapter_name(number), adapter_digest(number), "") for number in range(count)
    )


class Clock(Protocol):
    now_s: float

    def at(self, when_s: float, call: Callable[[], None]) -> None:
        """Call `call` at `when_s`."""


@dataclass(slots=True)
class Node:
    """A node's disk, which its replicas share."""

    digests: set[Digest] = field(default_factory=set)


@dataclass(slots=True)
class Engine:
    """A replica: engine and agent."""

    id: ReplicaId
    core: EngineCore
    node: Node
    demand: AdapterDemand
    policy: AdapterPolicy
    clock: Clock
    loaded: Callable[["Engine", EngineName], None]  # called after each cold load
    refused: Callable[["Engine", EngineName], None]
    scale: int
    rates: EngineRates = field(default_factory=EngineRates)
    busy: bool = False
    busy_s: float = 0.0
    places: dict[int, InFlightSlot] = field(default_factory=dict)
    adapter_ids: dict[EngineName, AdapterId] = field(default_factory=dict)  # loaded ones, by engine numbers
    advertised: tuple[EngineName, ...] = ()
    room: int = 0
    loads: int = 0
    heartbeats: int = 0
    _loading: dict[EngineName, None] = field(default_factory=dict)
    _calls: dict[EngineName, None] = field(default_factory=dict)
    _state: AdapterState = field(default_factory=AdapterState)
    _turn_free_s: float = 0.0

    def load_cold(self, name: EngineName) -> None:
        """Start a cold load for a gateway; `loaded` or `refused` is called later."""
        now_s = self.clock.now_s
        request = (name, ColdLoad(now_s, now_s + _COLD_LOAD_S))
        asked, self._state = agents.request_load(self.demand, self._now(), self._state, request, self.policy)
        if asked == "loaded":
            self.clock.at(now_s, lambda: self.loaded(self, name))
        elif asked == "accepted":
            self._calls[name] = None
        else:
            self.clock.at(now_s, lambda: self.refused(self, name))
        self.clock.at(now_s, self.plan)

    def plan(self) -> None:
        """Run one pass of the reconciler."""
        plan = agents.plan(self.demand, self._now(), self._state, self.clock.now_s, self.policy)
        self._state, self.advertised, self.room = plan.state, plan.advertise, plan.room
        for wanted in plan.load:
            self._loading[wanted.name] = None
            took_s = DISK_S if wanted.digest in self.node.digests else STORE_S
            self.node.digests.add(wanted.digest)
            self.clock.at(self.clock.now_s + took_s, lambda name=wanted.name: self._begin_load(name))  # type: ignore[misc]
        for name in [name for name in self._calls if name in plan.refused]:
            del self._calls[name]
            self.clock.at(self.clock.now_s, lambda name=name: self.refused(self, name))  # type: ignore[misc]
        for name in plan.unload:
            del self.adapter_ids[name]

    def heartbeat(self) -> Heartbeat:
        """Plan, and return the heartbeat that gateways receive once a second."""
        self.plan()
        core = self.core
        stats, scheduler = core.stats, core.scheduler
        counters = RateCounters(
            finished=float(sum(stats.e2e_s.counts)),
            e2e_s=stats.e2e_s.total,
            prefill_s=stats.prefill_s.total,
            computed_prompt_tokens=stats.request_computed_tokens.total,
            running=len(scheduler.running),
        )
        self.rates = update(self.rates, counters)
        self.heartbeats += 1
        disk = bloom.build(self.node.digests) if self.node.digests else None
        limits = core.limits
        return Heartbeat(
            replica_id=self.id,
            pool=POOL,
            host="127.0.0.1",
            port=1,
            phase="ready",
            sequence=self.heartbeats,
            incarnation=1,
            sent_unix_s=self.clock.now_s,
            running=len(scheduler.running),
            waiting=len(scheduler.waiting),
            kv_usage_ratio=max(0.0, scheduler.blocks.usage_ratio),
            kv_blocks_total=limits.num_kv_blocks * self.scale,
            kv_block_tokens=limits.block_size_tokens,
            service_ms=self.rates.service_ms,
            prefill_ms_per_token=self.rates.prefill_ms_per_token / self.scale,
            adapters=self.advertised,
            peer_port=1,
            adapter_room=self.room,
            disk_bloom=disk.encode() if disk is not None else "",
        )

    def _now(self) -> EngineAdapters:
        scheduler = self.core.scheduler
        at_work = {running.adapter for running in (*scheduler.running, *scheduler.waiting)}
        busy = frozenset(name for name, number in self.adapter_ids.items() if number in at_work)
        return EngineAdapters(frozenset(self.adapter_ids), busy, frozenset(self._loading))

    def _begin_load(self, name: EngineName) -> None:
        begins_s = max(self.clock.now_s, self._turn_free_s)
        if begins_s > self.clock.now_s:
            self.clock.at(begins_s, lambda: self._begin_load(name))
            return
        self.loads += 1
        number = AdapterId(self.loads)
        stall_s = self.core.load_adapter(number)
        self._turn_free_s = begins_s + stall_s
        self.clock.at(self._turn_free_s, lambda: self._end_load(name, number))

    def _end_load(self, name: EngineName, number: AdapterId) -> None:
        self.adapter_ids[name] = number
        del self._loading[name]
        if name in self._calls:
            del self._calls[name]
            self.loaded(self, name)
        self.plan()
