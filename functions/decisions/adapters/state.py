"""State behind an adapter plan: the policy, the engine's adapters, and the state kept between plans.

All times are monotonic seconds. The types are frozen, and each function returns a new state. Neighbour: `plan` makes
the plans.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeVar

from functions.api.ids import EngineName
from functions.decisions.adapters.demand import AdapterDemand
from functions.decisions.health.backoff import BackoffPolicy, delay_s

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class AdapterPolicy:
    max_adapters: int = 8
    """The engine's --max-cpu-loras: how many adapters it holds in memory without reading the disk again."""
    grace_s: float = 30.0
    """Time that a gateway may lag behind the snapshot: one long poll of 25 s, and a margin."""
    withdraw_s: float = 3.0
    """Three heartbeats: by then every gateway has received that the adapter is no longer advertised."""
    hold_s: float = 2.0
    """An adapter used this recently is not evicted: a new load must serve the requests that wait for it."""
    max_cold_loads: int = 64
    """Most cold loads that wait together; the next is sent to another replica."""
    max_prefetches: int = 4
    """Most loads ahead of need at a time: enough to fill a link, and the engine stays free for cold loads."""
    backoff: BackoffPolicy = field(default_factory=lambda: BackoffPolicy(base_s=1.0, cap_s=60.0))

    @property
    def leave_s(self) -> float:
        """Seconds after its withdrawal from which a still busy adapter is expected to stay busy, so another one is
        evicted."""
        return 2 * self.withdraw_s

    @property
    def headroom(self) -> int:
        """Places left free if not all adapters fit, so that a cold load need not wait for a withdrawal.

        The headroom is an eighth, at least one, and none if one place is a third of all or more:
        min(max_adapters // 4, max(1, max_adapters // 8)). Worked example (test_headroom_is_an_eighth): 2 -> 0, 4 ->
        1, 8 -> 1, 64 -> 8.
        """
        return min(self.max_adapters // 4, max(1, self.max_adapters // 8))

    @property
    def max_moving(self) -> int:
        """Most rollout versions that may evict others: half of all, at least two, so that a mass rollout does not empty
        the engine."""
        return min(self.max_adapters, max(2, self.max_adapters // 2))


@dataclass(frozen=True, slots=True)
class EngineAdapters:
    """The adapters that the engine has loaded, and those being fetched or loaded."""

    loaded: frozenset[EngineName]
    busy: frozenset[EngineName] = frozenset()  # with requests running or waiting
    loading: frozenset[EngineName] = frozenset()  # being fetched or loaded
    heard: bool = True  # False if heartbeats do not reach the bus: then no gateway has received what is withdrawn


@dataclass(frozen=True, slots=True)
class Failure:
    """The last failed load of one adapter; the next try is due at `retry_at_s`."""

    count: int
    retry_at_s: float
    reason: str
    refused: bool = False  # the artifact or the engine refused it: the next try will most likely fail too

    def __str__(self) -> str:
        return f"{self.reason} (failed {self.count} times)"


@dataclass(frozen=True, slots=True)
class ColdLoad:
    """A cold load that a gateway waits for; dropped at `until_s` if it has not started."""

    asked_s: float
    until_s: float


@dataclass(frozen=True, slots=True)
class AdapterState:
    """State that is kept between plans."""

    unwanted_since_s: Mapping[EngineName, float] = field(default_factory=dict)  # dropped by the snapshot
    leaving_since_s: Mapping[EngineName, float] = field(default_factory=dict)  # making room for another
    withdrawn_since_s: Mapping[EngineName, float] = field(default_factory=dict)  # withdrawal published
    loaded_s: Mapping[EngineName, float] = field(default_factory=dict)  # first seen in the engine
    busy_s: Mapping[EngineName, float] = field(default_factory=dict)  # last seen running or waiting
    asked_s: Mapping[EngineName, float] = field(default_factory=dict)  # last requested by a gateway
    cold_loads: Mapping[EngineName, ColdLoad] = field(default_factory=dict)
    failures: Mapping[EngineName, Failure] = field(default_factory=dict)

    def used_s(self, name: EngineName) -> float:
        """Return when the adapter was last busy or asked for, to this agent's knowledge; minus infinity if it never
        was."""
        return max(self.busy_s.get(name, float("-inf")), self.asked_s.get(name, float("-inf")))


# Results of `request_load`: the adapter will be loaded; is loaded; is not in the snapshot; failed recently, for good
# (refused) or not (failed); too many loads wait.
LoadVerdict = Literal["accepted", "loaded", "unknown", "refused", "failed", "full"]


def request_load(
    demand: AdapterDemand,
    engine: EngineAdapters,
    state: AdapterState,
    request: tuple[EngineName, ColdLoad],
    policy: AdapterPolicy,
) -> tuple[LoadVerdict, AdapterState]:
    """Register a gateway's need for the adapter; return a verdict and the new state. An adapter that was being evicted
    stays loaded; a failed one is refused until its retry is due."""
    name, load = request
    if name not in demand.by_name:
        return ("loaded" if name in engine.loaded and name not in state.withdrawn_since_s else "unknown"), state
    if name in engine.loaded:
        kept = replace(
            state,
            leaving_since_s=_without(state.leaving_since_s, name),
            withdrawn_since_s=_without(state.withdrawn_since_s, name),
            asked_s={**state.asked_s, name: load.asked_s},
        )
        return "loaded", kept
    failure = state.failures.get(name)
    if failure is not None and load.asked_s < failure.retry_at_s:
        return ("refused" if failure.refused else "failed"), state
    former = state.cold_loads.get(name)
    if former is None and len(state.cold_loads) >= policy.max_cold_loads:
        return "full", state
    first_s = former.asked_s if former is not None else load.asked_s
    last_s = max(former.until_s, load.until_s) if former is not None else load.until_s
    return "accepted", replace(state, cold_loads={**state.cold_loads, name: ColdLoad(first_s, last_s)})


def record_failed_load(
    state: AdapterState,
    name: EngineName,
    reason: str,
    now_s: float,
    policy: AdapterPolicy,
    *,
    refused: bool = False,
) -> AdapterState:
    """Return the state after a failed load: its cold load is dropped, and the retry delay doubles up to its maximum."""
    count = state.failures[name].count + 1 if name in state.failures else 1
    failure = Failure(count, now_s + delay_s(count, policy.backoff), reason, refused)
    return replace(state, failures={**state.failures, name: failure}, cold_loads=_without(state.cold_loads, name))


def observe(
    demand: AdapterDemand, engine: EngineAdapters, state: AdapterState, now_s: float, policy: AdapterPolicy
) -> AdapterState:
    """Return the state updated with the engine's current adapters, without entries that are over."""
    loaded, known = engine.loaded, demand.by_name
    all_fit = len(known) <= policy.max_adapters

    def kept_busy(name: EngineName, leaving_since_s: float) -> bool:
        return name in engine.busy and now_s - leaving_since_s >= policy.leave_s

    arrived = {name: load.asked_s for name, load in state.cold_loads.items() if name in loaded}
    cold_loads = {
        name: load
        for name, load in state.cold_loads.items()
        if name not in loaded and name in known and (now_s < load.until_s or name in engine.loading)
    }
    return AdapterState(
        unwanted_since_s={n: state.unwanted_since_s.get(n, now_s) for n in loaded if n not in known},
        leaving_since_s={
            n: since_s
            for n, since_s in state.leaving_since_s.items()
            if n in loaded and n in known and not all_fit and n not in state.cold_loads and not kept_busy(n, since_s)
        },
        withdrawn_since_s={n: since_s for n, since_s in state.withdrawn_since_s.items() if n in loaded},
        loaded_s={n: state.loaded_s.get(n, now_s) for n in loaded},
        busy_s=_only(state.busy_s, loaded) | dict.fromkeys(engine.busy & loaded, now_s),
        asked_s=_only(state.asked_s, loaded) | dict.fromkeys(arrived, now_s),
        cold_loads=cold_loads,
        failures={n: failure for n, failure in state.failures.items() if n in known and n not in loaded},
    )


def _only(values: Mapping[EngineName, T], names: frozenset[EngineName]) -> dict[EngineName, T]:
    return {name: value for name, value in values.items() if name in names}


def _without(values: Mapping[EngineName, T], name: EngineName) -> Mapping[EngineName, T]:
    return {other: value for other, value in values.items() if other != name} if name in values else values
