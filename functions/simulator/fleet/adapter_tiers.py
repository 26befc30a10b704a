"""Adapters of one replica: which ones its agent loads and unloads, and how long a load takes, tier by tier.

    store -> disk of the node -> host memory of the engine (reported in heartbeats) -> a slot of the accelerator

`decisions.adapters.plan` makes the agent's plans, once a second and whenever a gateway requests a load. Accelerator
slots are evicted least recently used first: a request whose adapter is in no slot waits `gpu_s` before its prompt is
read.
"""

import hashlib
from collections import OrderedDict
from dataclasses import replace
from typing import NamedTuple

from functions.api.ids import ENGINE_NAME_HEX_DIGITS, Digest, EngineName
from functions.decisions.adapters.demand import AdapterDemand, WantedAdapter
from functions.decisions.adapters.plan import plan, request_load
from functions.decisions.adapters.state import AdapterPolicy, AdapterState, ColdLoad, EngineAdapters, LoadVerdict
from functions.decisions.distribution.bloom import build
from functions.simulator.fleet.setting import AdapterTimes


class Loading(NamedTuple):
    """A load that has started; it ends at `ready_s`."""

    name: EngineName
    ready_s: float


def engine_name_of(adapter: str) -> EngineName:
    """Return the engine's name of an adapter; a name without a digest gets a fixed made-up one."""
    if "@sha256:" in adapter:
        return EngineName(adapter)
    return EngineName(f"{adapter}@sha256:{hashlib.sha256(adapter.encode()).hexdigest()[:ENGINE_NAME_HEX_DIGITS]}")


def demand_of(times: AdapterTimes) -> AdapterDemand:
    """Return the demand for all of a pool's adapters: reachable, none pinned."""
    names = map(engine_name_of, times.names)
    return AdapterDemand.from_ranked(WantedAdapter(name, _digest_of(name), "", "unnamed") for name in names)


class ReplicaAdapterTiers:
    __slots__ = (
        "_bloom",
        "_busy",
        "_demand",
        "_disk",
        "_is_settled",
        "_loaded",
        "_loading",
        "_policy",
        "_slots",
        "_state",
        "_times",
        "_used",
        "advertised",
        "loads",
        "room",
    )

    def __init__(self, times: AdapterTimes, demand: AdapterDemand) -> None:
        self._times = times
        self._policy = AdapterPolicy(max_adapters=times.cpu_slots)
        self._disk: OrderedDict[EngineName, None] = OrderedDict()
        self._bloom: str | None = ""  # None means outdated, since the disk has changed
        self.loads = 0
        self._demand = demand  # shared by all of a pool's replicas
        self.reset_engine()

    def reset_engine(self) -> None:
        """Reset everything except the disk, for a new engine."""
        self._state = AdapterState()
        self._is_settled = False
        self._loaded: set[EngineName] = set()
        self._loading: dict[EngineName, float] = {}
        self._busy: dict[EngineName, int] = {}
        self._used: set[EngineName] = set()  # since the last plan
        self._slots: OrderedDict[EngineName, None] = OrderedDict()
        self.advertised: tuple[EngineName, ...] = ()
        self.room = self._times.cpu_slots

    def load_ahead(self, now_s: float) -> None:
        """Finish all planned loads immediately, as if the agent had run for a while."""
        while begun := self.tick(now_s):
            for name, _ in begun:
                del self._loading[name]
                self._loaded.add(name)

    def preload_share(self, number: int, of: int) -> None:
        """Fill the replica with its share of the adapters, as replica `number` of `of` that has run for a while."""
        names = self._times.names
        first = number * len(names) // max(1, of)
        most = self._times.cpu_slots - self._policy.headroom
        for name in map(engine_name_of, (names[first:] + names[:first])[: max(0, most)]):
            self._loaded.add(name)
            self._disk[name] = None
        self._bloom = None
        self._is_settled = False
        self.tick(0.0)

    # Requests of the gateway.

    def has(self, name: EngineName) -> bool:
        return name in self._loaded

    def acquire_slot(self, name: EngineName) -> float:
        """Count a request for the adapter and put it into an accelerator slot. Return the seconds that takes, 0 if it
        is there."""
        self._busy[name] = self._busy.get(name, 0) + 1
        self._used.add(name)
        slots = self._slots
        is_there = name in slots
        slots[name] = None
        slots.move_to_end(name)
        while len(slots) > self._times.gpu_slots:
            slots.popitem(last=False)
        return 0.0 if is_there else self._times.gpu_s

    def release_slot(self, name: EngineName) -> None:
        left = self._busy.get(name, 0) - 1
        if left > 0:
            self._busy[name] = left
        else:
            self._busy.pop(name, None)

    # Plans of the agent.

    def request_load(self, name: EngineName, until_s: float, now_s: float) -> tuple[LoadVerdict, list[Loading]]:
        """Request a load for a gateway. Return the agent's answer and the loads that start because of it."""
        self._is_settled = False
        answer, self._state = request_load(
            self._demand, self._engine(), self._state, (name, ColdLoad(now_s, until_s)), self._policy
        )
        return answer, self.tick(now_s) if answer == "accepted" else []

    def loaded(self, name: EngineName, now_s: float) -> list[Loading]:
        """Finish the adapter's load, if it is under way. Return the loads that start after it."""
        if self._loading.pop(name, None) is None:
            return []
        self._loaded.add(name)
        self._is_settled = False
        self.loads += 1
        return self.tick(now_s)

    def is_wanted(self, name: EngineName) -> bool:
        return name in self._loading or name in self._state.cold_loads

    def tick(self, now_s: float) -> list[Loading]:
        """Carry out the agent's plan, once a second or after a change. Return the loads that start."""
        self._note_use(now_s)
        if self._is_settled:
            return []
        made = plan(self._demand, self._engine(), self._state, now_s, self._policy)
        self._state = made.state
        for name in made.unload:
            self._loaded.discard(name)
            self._slots.pop(name, None)
        self.advertised, self.room = made.advertise, made.room
        begun = [self._load(wanted, now_s) for wanted in made.load]
        self._is_settled = not made.unload and self._nothing_moves()
        return begun

    @property
    def bloom(self) -> str:
        """Bloom filter of the disk for heartbeats; built on demand, since a start changes the disk a dozen times."""
        if self._bloom is None:
            found = build([_digest_of(name) for name in self._disk])
            self._bloom = found.encode() if found is not None else ""
        return self._bloom

    def _note_use(self, now_s: float) -> None:
        """Record the adapters that were used since the last plan; the plan itself sees only those busy now."""
        used = (self._used | self._busy.keys()) & self._loaded
        self._used.clear()
        if used:
            self._state = replace(self._state, busy_s={**self._state.busy_s, **dict.fromkeys(sorted(used), now_s)})

    def _nothing_moves(self) -> bool:
        """Return True if the next plan would be the same. Skipping it saves a third of a core with 5,000 replicas."""
        state = self._state
        if self._loading or state.cold_loads or state.leaving_since_s or state.withdrawn_since_s:
            return False
        return self.room >= self._policy.headroom or len(self._demand.by_name) <= self._policy.max_adapters

    def _engine(self) -> EngineAdapters:
        return EngineAdapters(frozenset(self._loaded), frozenset(self._busy), frozenset(self._loading))

    def _load(self, wanted: WantedAdapter, now_s: float) -> Loading:
        times, name = self._times, wanted.name
        takes_s = times.disk_s if name in self._disk else times.disk_s + times.store_s
        self._disk[name] = None
        self._disk.move_to_end(name)
        while len(self._disk) > times.disk_slots:
            self._disk.popitem(last=False)
        self._bloom = None
        self._loading[name] = now_s + takes_s
        return Loading(name, now_s + takes_s)


def _digest_of(name: EngineName) -> Digest:
    """Return the end of the engine's name of an adapter, the first digits of its digest, as the simulation's digest of
    it."""
    return Digest(name.rpartition("@")[2])
