"""Small simulated fleets for tests: a steady stream of requests, and a list of timed events."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from functions.api.ids import PoolName, TenantId
from functions.simulator.fleet.engine_profile import PROFILES
from functions.simulator.fleet.outcome import Outcome
from functions.simulator.fleet.setting import POOL, PoolSetting, Setting
from functions.simulator.fleet.simulation import Actor, Simulation
from functions.simulator.workload.request import WorkloadRequest

H100 = PROFILES["h100-8b"]
At = tuple[float, Callable[[Simulation], Any]]


def stream(per_s: float, seconds: float, **changes: Any) -> Iterator[WorkloadRequest]:
    """Yield requests at even gaps, with prompts of 400 and answers of 100 tokens, from four tenants in turn."""
    for number in range(int(per_s * seconds)):
        asked = {"prompt_tokens": 400, "output_tokens": 100, **changes}
        prompt_tokens, output_tokens = asked.pop("prompt_tokens"), asked.pop("output_tokens")
        made = {name: value(number) if callable(value) else value for name, value in asked.items()}
        tenant = TenantId(made.pop("tenant", f"t{number % 4}"))
        yield WorkloadRequest((number + 1) / per_s, tenant, prompt_tokens, output_tokens, **made)


def rig(workload: Iterator[WorkloadRequest], *happens: At, actors: Iterable[Actor] = (), **setting: Any) -> Simulation:
    """Build a simulation in which each `(at_s, what)` happens once."""
    made = Setting(**{"replicas": 4, "profile": H100, "block_tokens": 64, **setting})
    simulation = Simulation(made, workload, actors)
    for at_s, what in happens:
        simulation.events.at(at_s, partial(what, simulation))
    return simulation


def pool(name: str = POOL, replicas: int = 2, **changes: Any) -> PoolSetting:
    return replace(PoolSetting(name=PoolName(name), profile=H100, replicas=replicas), **changes)


def lost(outcome: Outcome) -> dict[str, int]:
    return {reason: count for band in outcome.bands for reason, count in band.lost.items()}


def shed(outcome: Outcome) -> dict[str, int]:
    return {reason: count for band in outcome.bands for reason, count in band.shed.items()}


def served(outcome: Outcome) -> int:
    return sum(band.served for band in outcome.bands)
