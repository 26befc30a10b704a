"""Adapter plan of one engine: from the snapshot's demand and the engine's state to the next loads and unloads.

A new version is loaded under its own name beside the old one. An adapter is drained before it is unloaded:

    dropped by the snapshot --grace_s--+
                                       +--> withdrawn (no longer advertised) --withdraw_s, heard, and idle--> unloaded
    makes room for another ------------+

The grace period covers gateways with the old snapshot. The withdrawal covers requests already routed here, and lasts
while heartbeats do not reach the bus. The engine never holds more than `max_adapters`, including those on their way
out: an engine over its host cache reads adapters from disk inside its step, which stalls every request.

If all adapters fit, all are loaded and none is unloaded. Otherwise:

    1 cold loads   adapters that a gateway waits for, in order of arrival, into any free place
    2 pinned       versions in a rollout; every channel's version too, if these leave a place free
    3 the rest     by rank, while the headroom stays free
    4 victims      the least recently used idle adapters are evicted for cold loads and pins without room, and for the
                   headroom; never used ones first, in order of loading; none that was used within `hold_s`

The order of victims is the engine's own order: the engine drops weights from its host memory by least recent use when
others are loaded, whichever adapter is unloaded by name. With another order, it would drop adapters that it still
serves.

Worked example (test_cold_load_uses_headroom_and_lru_eviction_restores_it): 5 adapters, 4 places, headroom 1.
Three are loaded ahead. A request for the fourth loads it immediately, and the least recently used of the three is
withdrawn. 3 s later it is unloaded, and one place is free again.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from functions.api.ids import EngineName
from functions.decisions.adapters.demand import AdapterDemand, WantedAdapter, build_demand
from functions.decisions.adapters.state import (
    AdapterPolicy,
    AdapterState,
    ColdLoad,
    EngineAdapters,
    Failure,
    observe,
    record_failed_load,
    request_load,
)

__all__ = [
    "AdapterDemand",
    "AdapterPlan",
    "AdapterPolicy",
    "AdapterState",
    "ColdLoad",
    "EngineAdapters",
    "Failure",
    "WantedAdapter",
    "build_demand",
    "plan",
    "record_failed_load",
    "request_load",
]  # fmt: skip

_DRAINED = "waits for an adapter that is being drained"
_BUSY = "waits for room: every other adapter of this replica is busy or recently used"
_REASONS_SHOWN = 4  # a hundred adapters that cannot be loaded give one sentence, not a page


@dataclass(frozen=True, slots=True)
class AdapterPlan:
    load: tuple[WantedAdapter, ...]  # in this order
    unload: tuple[EngineName, ...]
    advertise: tuple[EngineName, ...]
    awaited: tuple[EngineName, ...]  # pinned, not loaded yet, and without a known failure
    refused: Mapping[EngineName, str]  # cold loads that find no room now, with the reason
    left_out: Mapping[EngineName, str]  # pinned or failed, not loaded, with the reason
    without_room: tuple[EngineName, ...]  # versions of rollouts beyond this engine's limit, not loaded; by rank
    room: int  # free places, minus the waiting cold loads
    cold: int  # known adapters that are neither loaded nor loading
    state: AdapterState

    @property
    def reason(self) -> str:
        """Reasons why adapters are not loaded, failures first and a limited number of them, for display; empty if there
        are none."""
        ordered = sorted(self.left_out, key=lambda name: (name not in self.state.failures, name))
        shown = [f"{name}: {self.left_out[name]}" for name in ordered[:_REASONS_SHOWN]]
        more = len(ordered) - len(shown)
        return "; ".join([*shown, f"and {more} more"] if more else shown)


def plan(
    demand: AdapterDemand, engine: EngineAdapters, state: AdapterState, now_s: float, policy: AdapterPolicy
) -> AdapterPlan:
    """Return the loads and unloads due now, and the state to pass in next time."""
    pinned, over = _pinned(demand, policy)
    state = _withdraw(_without_pins(observe(demand, engine, state, now_s, policy), pinned), engine, now_s, policy)
    pass_ = _Pass(demand, engine, state, now_s, policy, pinned)
    pass_.serve_cold_loads()
    pass_.prefetch()
    victims = pass_.victims()
    state = _withdraw(replace(state, leaving_since_s={**state.leaving_since_s, **victims}), engine, now_s, policy)
    refused = pass_.without_room()
    state = replace(state, cold_loads={name: load for name, load in state.cold_loads.items() if name not in refused})
    limit = f"over this replica's limit of {policy.max_adapters} adapters"
    without_room = tuple(name for name in over if name not in engine.loaded)
    left_out = dict.fromkeys(without_room, limit)
    left_out |= dict.fromkeys(pass_.pins_waiting, _DRAINED if _is_any_leaving(state) else _BUSY)
    left_out |= {name: str(failure) for name, failure in state.failures.items()}
    present = engine.loaded | engine.loading | {adapter.name for adapter in pass_.load}
    return AdapterPlan(
        load=tuple(pass_.load),
        unload=tuple(sorted(n for n in state.withdrawn_since_s if _may_unload(n, engine, state, now_s, policy))),
        advertise=tuple(sorted(engine.loaded - state.withdrawn_since_s.keys())),
        awaited=tuple(n for n in pinned if n not in engine.loaded and n not in state.failures),
        refused=refused,
        left_out=left_out,
        without_room=without_room,
        room=max(0, pass_.room - len(pass_.cold_loads_waiting)),
        cold=len(demand.by_name) - sum(name in demand.by_name for name in present),
        state=state,
    )


@dataclass(slots=True)
class _Pass:
    """One plan while it is being made."""

    demand: AdapterDemand
    engine: EngineAdapters
    state: AdapterState
    now_s: float
    policy: AdapterPolicy
    pinned: Mapping[EngineName, None]
    load: list[WantedAdapter] = field(default_factory=list)
    cold_loads_waiting: list[EngineName] = field(default_factory=list)
    pins_waiting: list[EngineName] = field(default_factory=list)
    room: int = 0

    def __post_init__(self) -> None:
        self.room = self.policy.max_adapters - len(self.engine.loaded | self.engine.loading)

    @property
    def headroom(self) -> int:
        return self.policy.headroom if len(self.demand.by_name) > self.policy.max_adapters else 0

    def serve_cold_loads(self) -> None:
        loads = self.state.cold_loads
        for name in sorted(loads, key=lambda name: (loads[name].asked_s, name)):
            if name in self.engine.loading:
                continue
            if self.room > 0:
                self._add_load(self.demand.by_name[name])
            else:
                self.cold_loads_waiting.append(name)

    def prefetch(self) -> None:
        """Start loads of pins into any room, and of other ranked adapters while the headroom stays free; at most
        `max_prefetches` are under way. Pins without room are noted as waiting."""
        ahead = self.policy.max_prefetches - len(self.engine.loading - self.state.cold_loads.keys())
        for name in self.pinned:
            if name in self.state.cold_loads or not self._loadable(name):
                continue
            if self.room <= 0:
                self.pins_waiting.append(name)
            elif ahead > 0:
                self._add_load(self.demand.by_name[name])
                ahead -= 1
        for adapter in self.demand.ranked:
            if self.room <= self.headroom or ahead <= 0:
                return
            if self._loadable(adapter.name) and adapter.name not in self.state.cold_loads:
                self._add_load(adapter)
                ahead -= 1

    def victims(self) -> dict[EngineName, float]:
        """Return the adapters whose eviction starts now, with the present time: as many idle ones as cold loads, pins
        and the headroom lack places."""
        missing = len(self.cold_loads_waiting) + len(self.pins_waiting)
        missing += max(0, self.headroom - max(0, self.room))
        missing -= self._going
        if missing <= 0:
            return {}
        idle = [name for name in self.engine.loaded if self._evictable(name)]
        idle.sort(key=self._worth)
        return dict.fromkeys(idle[:missing], self.now_s)

    def without_room(self) -> dict[EngineName, str]:
        """Return the cold loads to reject, with the reason. Idle adapters count as room even if `hold_s` still protects
        them."""
        leaving = self._going
        soon = sum(self._idle(name) for name in self.engine.loaded) if len(self.cold_loads_waiting) > leaving else 0
        reason = f"all {self.policy.max_adapters} adapters of this replica are busy or part of a rollout"
        return dict.fromkeys(self.cold_loads_waiting[leaving + soon :], reason)

    @property
    def _going(self) -> int:
        """Number of withdrawn adapters that will soon be unloaded, without those that a long request keeps busy."""
        withdrawn_s = self.state.withdrawn_since_s
        kept = [n for n in withdrawn_s if n in self.engine.busy and self.now_s - withdrawn_s[n] >= self.policy.leave_s]
        return len(withdrawn_s) - len(kept)

    def _worth(self, name: EngineName) -> tuple[float, bool, float, int]:
        """Return the sort key of victims, least valuable first: by last use. Never used adapters sort by need, then by
        load time."""
        named = self.demand.by_name[name].need != "unnamed"
        return (self.state.used_s(name), named, self.state.loaded_s.get(name, self.now_s), self.demand.rank[name])

    def _add_load(self, adapter: WantedAdapter) -> None:
        self.load.append(adapter)
        self.room -= 1

    def _loadable(self, name: EngineName) -> bool:
        if name in self.engine.loaded or name in self.engine.loading or any(name == each.name for each in self.load):
            return False
        failure = self.state.failures.get(name)
        return failure is None or self.now_s >= failure.retry_at_s

    def _evictable(self, name: EngineName) -> bool:
        return self._idle(name) and self.now_s - self.state.used_s(name) >= self.policy.hold_s

    def _idle(self, name: EngineName) -> bool:
        """Return True if the adapter is wanted, not busy, not pinned and not already leaving."""
        if name in self.engine.busy or name in self.pinned or name in self.state.leaving_since_s:
            return False
        return name in self.demand.by_name


def _pinned(demand: AdapterDemand, policy: AdapterPolicy) -> tuple[dict[EngineName, None], tuple[EngineName, ...]]:
    """Return the adapters to load ahead and keep, in order (all that may be loaded ahead, if all fit); and the
    rollouts' versions beyond this replica's limit."""
    if len(demand.by_name) <= policy.max_adapters:
        return dict.fromkeys(wanted.name for wanted in demand.ranked), ()
    moving, over = demand.moving[: policy.max_moving], demand.moving[policy.max_moving :]
    room_for_others = max(1, policy.headroom)
    if len(demand.moving) + len(demand.named) <= policy.max_adapters - room_for_others:
        return dict.fromkeys((*moving, *over, *demand.named)), ()
    return dict.fromkeys(moving), over


def _without_pins(state: AdapterState, pinned: Mapping[EngineName, None]) -> AdapterState:
    """Return the state without the evictions of adapters that a rollout has come to need."""
    return replace(
        state, leaving_since_s={n: since_s for n, since_s in state.leaving_since_s.items() if n not in pinned}
    )


def _is_any_leaving(state: AdapterState) -> bool:
    return bool(state.unwanted_since_s or state.leaving_since_s)


def _withdraw(state: AdapterState, engine: EngineAdapters, now_s: float, policy: AdapterPolicy) -> AdapterState:
    """Set the adapters that are no longer advertised: those unwanted for `grace_s`, and those leaving. Their time
    restarts now if heartbeats do not reach the bus."""
    past_grace = [n for n, since_s in state.unwanted_since_s.items() if now_s - since_s >= policy.grace_s]
    out = [*past_grace, *state.leaving_since_s]
    since_s = state.withdrawn_since_s if engine.heard else {}
    return replace(state, withdrawn_since_s={name: since_s.get(name, now_s) for name in out})


def _may_unload(
    name: EngineName, engine: EngineAdapters, state: AdapterState, now_s: float, policy: AdapterPolicy
) -> bool:
    withdrawn_s = now_s - state.withdrawn_since_s[name]
    quiet_s = now_s - state.busy_s.get(name, float("-inf"))
    return withdrawn_s >= policy.withdraw_s and name not in engine.busy and quiet_s >= policy.withdraw_s
