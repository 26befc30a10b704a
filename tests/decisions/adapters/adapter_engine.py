"""A simulated engine that follows adapter plans, and short constructors for demands and names."""

import hashlib
from dataclasses import dataclass, field

from functions.api.ids import Digest, EngineName
from functions.decisions.adapters import plan as adapters
from functions.decisions.adapters.demand import Need
from functions.decisions.adapters.plan import (
    AdapterDemand,
    AdapterPlan,
    AdapterPolicy,
    AdapterState,
    ColdLoad,
    EngineAdapters,
    WantedAdapter,
)

POLICY = AdapterPolicy(max_adapters=3, grace_s=30.0, withdraw_s=3.0)


def digest(text: str) -> Digest:
    return Digest("sha256:" + hashlib.sha256(text.encode()).hexdigest())


def wanted(*names: str, need: Need = "named") -> AdapterDemand:
    """Build a demand in this rank order. `moving:b` is part of a rollout, no channel names `unnamed:c`."""
    return AdapterDemand.from_ranked(one(*((*name.split(":"),) if ":" in name else (need, name))) for name in names)


def one(need: str, name: str) -> WantedAdapter:
    return WantedAdapter(EngineName(name), digest(name), f"s3://shoal-models/{name}", need)  # type: ignore[arg-type]


def names(*texts: str) -> frozenset[EngineName]:
    return frozenset(EngineName(text) for text in texts)


@dataclass
class Engine:
    """An engine that carries out the plan of each step; a step takes a second."""

    policy: AdapterPolicy = POLICY
    loaded: set[EngineName] = field(default_factory=set)
    busy: set[EngineName] = field(default_factory=set)
    heard: bool = True
    state: AdapterState = field(default_factory=AdapterState)
    now_s: float = 0.0
    history: list[str] = field(default_factory=list)

    def step(self, demand: AdapterDemand, seconds: float = 1.0) -> AdapterPlan:
        self.now_s += seconds
        plan = adapters.plan(demand, self._now(), self.state, self.now_s, self.policy)
        self.state = plan.state
        for name in plan.unload:
            self.loaded.discard(name)
            self.history.append(f"{self.now_s:.0f} unload {name}")
        for adapter in plan.load:
            self.loaded.add(adapter.name)
            self.history.append(f"{self.now_s:.0f} load {adapter.name}")
        return plan

    def request_load(self, demand: AdapterDemand, name: str, wait_s: float = 15.0) -> str:
        request = (EngineName(name), ColdLoad(self.now_s, self.now_s + wait_s))
        answer, self.state = adapters.request_load(demand, self._now(), self.state, request, self.policy)
        return answer

    def _now(self) -> EngineAdapters:
        return EngineAdapters(frozenset(self.loaded), frozenset(self.busy & self.loaded), heard=self.heard)
