"""A pool in virtual time: no request is lost, results are reproducible, and overload is refused rather than queued."""

from dataclasses import replace
from typing import Any

import pytest

from functions.simulator.fleet.engine_profile import PROFILES
from functions.simulator.fleet.outcome import Outcome
from functions.simulator.fleet.simulation import Setting, simulate
from functions.simulator.workload.synthetic import BLOCK_TOKENS, Traffic, synthetic
from studies.routers.simulated import ROUTERS
from tests.soak import sampled

SETTING = Setting(replicas=4, profile=PROFILES["h100-8b"], block_tokens=BLOCK_TOKENS)


def run(per_s: float, seconds: float = 60.0, seed: int = 1, **changes: Any) -> Outcome:
    traffic = Traffic(requests_per_s=per_s, seconds=seconds)
    return simulate(replace(SETTING, **changes), synthetic(traffic, seed))


@pytest.mark.parametrize(
    "router", sampled(["shoal", "cache-aware", "least-loaded", "round-robin"], keep=["shoal", "round-robin"])
)
@pytest.mark.parametrize("gateways", sampled([1, 3], keep=[3]))
@pytest.mark.parametrize("per_s", [4.0, 100.0])
def test_each_request_is_served_once_or_shed_once(router: str, gateways: int, per_s: float) -> None:
    outcome = run(per_s, 5.0, router=ROUTERS[router], gateways=gateways)
    asked = sum(1 for _ in synthetic(Traffic(requests_per_s=per_s, seconds=5.0), 1))
    (interactive,) = (band for band in outcome.bands if band.asked)
    assert interactive.asked == asked
    assert interactive.served + sum(interactive.shed.values()) == asked
    assert interactive.ttft.count == interactive.served
    assert sum(outcome.routes.values()) == interactive.served


def test_the_same_seed_gives_the_same_figures() -> None:
    assert run(20.0, 10.0).figures() == run(20.0, 10.0).figures() != run(20.0, 10.0, seed=2).figures()


def test_ttft_at_low_load_is_the_prefill_time() -> None:
    interactive = run(1.0, 120.0).bands[0]
    assert not interactive.shed
    assert interactive.queued.quantile(0.99) == pytest.approx(0.01, abs=0.01)
    profile = SETTING.profile
    shortest_ms = profile.step_ms + 1 * profile.prefill_ms_per_token
    p50_ms = interactive.ttft.quantile(0.5)
    assert p50_ms is not None
    assert shortest_ms < p50_ms < profile.step_ms + 1500 * profile.prefill_ms_per_token


def test_overload_is_refused_with_admission_and_queued_without() -> None:
    with_room, without = run(150.0, 10.0).bands[0], run(150.0, 10.0, admission=None).bands[0]
    assert sum(with_room.shed.values()) > 0.2 * with_room.asked
    assert not without.shed
    slowest, waited_out = with_room.ttft.quantile(0.99), without.ttft.quantile(0.99)
    assert slowest is not None
    assert waited_out is not None
    assert slowest < waited_out / 2


def test_cache_aware_routing_has_more_hits() -> None:
    hits = {router: run(12.0, router=ROUTERS[router]).figures()["hit_ratio"] for router in ("shoal", "round-robin")}
    assert hits["shoal"] > hits["round-robin"] + 0.1
