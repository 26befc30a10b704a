"""The adapters of one replica: what its agent would load and unload, and how long that takes, tier by tier.

    store -> disk of the node -> host memory of the engine (what a heartbeat tells of) -> a slot of the accelerator

The agent's plans are `decisions.adapters.plan`, made once a second as there, and at once when a gateway asks. The
engine's slots are least recently used: one that is in none costs `gpu_s` before its prompt is read.

Neighbours: `replica` says so in its heartbeats; `cold_loads` asks; `lifecycle` lets a second pass.
"""

import hashlib
from collections import OrderedDict
from dataclasses import replace
from typing import NamedTuple

from functions.api.ids import ENGINE_NAME_HEX_DIGITS, Digest, EngineName
from functions.decisions.adapters.demand import AdapterDemand, WantedAdapter
from functions.decisions.adapters.plan import ask, plan
from functions.decisions.adapters.state import AdapterPolicy, AdapterState, ColdLoad, EngineAdapters, LoadVerdict
from functions.decisions.distribution.bloom import build
from functions.simulator.fleet.setting import AdapterTimes


class Loading(NamedTuple):
    """One that has begun to load; done at `ready_s`."""

    name: EngineName
    ready_s: float


def engine_name_of(adapter: str) -> EngineName:
    """What an engine calls it; a name without a digest gets one, always the same."""
    if "@sha256:" in adapter:
        return EngineName(adapter)
    return EngineName(f"{adapter}@sha256:{hashlib.sha256(adapter.encode()).hexdigest()[:ENGINE_NAME_HEX_DIGITS]}")


def demand_of(times: AdapterTimes) -> AdapterDemand:
    """All of a pool's adapters, reachable and never pinned."""
    names = map(engine_name_of, times.names)
    return AdapterDemand.of(WantedAdapter(name, _digest_of(name), "", "unnamed") for name in names)


class AdapterTiers:
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
        self._bloom: str | None = ""  # None: the disk has changed
        self.loads = 0
        self._demand = demand  # the same for all of a pool's replicas
        self.begin_again()

    def begin_again(self) -> None:
        """The engine is another one; the disk is as it was."""
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
        """What an agent loads that has been there for long, at once."""
        while begun := self.tick(now_s):
            for name, _ in begun:
                del self._loading[name]
                self._loaded.add(name)

    def hold(self, number: int, of: int) -> None:
        """What the replica of this number, of so many, has had for a while: its share, and no more than it may."""
        names = self._times.names
        first = number * len(names) // max(1, of)
        most = self._times.cpu_slots - self._policy.headroom
        for name in map(engine_name_of, (names[first:] + names[:first])[: max(0, most)]):
            self._loaded.add(name)
            self._disk[name] = None
        self._bloom = None
        self._is_settled = False
        self.tick(0.0)

    # requests

    def has(self, name: EngineName) -> bool:
        return name in self._loaded

    def enter(self, name: EngineName) -> float:
        """A request that needs it comes: the seconds until it is in a slot of the accelerator."""
        self._busy[name] = self._busy.get(name, 0) + 1
        self._used.add(name)
        slots = self._slots
        is_there = name in slots
        slots[name] = None
        slots.move_to_end(name)
        while len(slots) > self._times.gpu_slots:
            slots.popitem(last=False)
        return 0.0 if is_there else self._times.gpu_s

    def leave(self, name: EngineName) -> None:
        left = self._busy.get(name, 0) - 1
        if left > 0:
            self._busy[name] = left
        else:
            self._busy.pop(name, None)

    # the agent

    def ask(self, name: EngineName, until_s: float, now_s: float) -> tuple[LoadVerdict, list[Loading]]:
        """A gateway needs it: what it is told, and what begins to load because of that."""
        self._is_settled = False
        answer, self._state = ask(
            self._demand, self._engine(), self._state, (name, ColdLoad(now_s, until_s)), self._policy
        )
        return answer, self.tick(now_s) if answer == "accepted" else []

    def loaded(self, name: EngineName, now_s: float) -> list[Loading]:
        """Its time is over."""
        if self._loading.pop(name, None) is None:
            return []
        self._loaded.add(name)
        self._is_settled = False
        self.loads += 1
        return self.tick(now_s)

    def is_wanted(self, name: EngineName) -> bool:
        return name in self._loading or name in self._state.cold_loads

    def tick(self, now_s: float) -> list[Loading]:
        """A second has passed, or something has changed: what is to be done now; gives what begins to load."""
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
        """What a heartbeat says of the disk; made when it is asked for, since a start changes it a dozen times."""
        if self._bloom is None:
            found = build([_digest_of(name) for name in self._disk])
            self._bloom = found.encode() if found is not None else ""
        return self._bloom

    # inside

    def _note_use(self, now_s: float) -> None:
        """Who has run since the last look: a plan would see only those that run at this moment."""
        used = (self._used | self._busy.keys()) & self._loaded
        self._used.clear()
        if used:
            self._state = replace(self._state, busy_s={**self._state.busy_s, **dict.fromkeys(sorted(used), now_s)})

    def _nothing_moves(self) -> bool:
        """Whether the next plan would be this one: a plan a second for each of 5,000 replicas took a core's third."""
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
    """An engine's name for an adapter ends in its digest's first digits."""
    return Digest(name.rpartition("@")[2])
