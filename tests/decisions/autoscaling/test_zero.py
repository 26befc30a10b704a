"""Scale to zero and from zero: one start for any number of waiting requests, and no idle pool stays up."""

from dataclasses import replace

import pytest

from functions.decisions.autoscaling.decide import ScalerState, Scaling, decide
from functions.decisions.autoscaling.forecast import Forecast
from functions.decisions.autoscaling.policy import ScalePolicy
from functions.decisions.autoscaling.signals import PoolSignals
from tests.decisions.autoscaling.scaling_cases import policy, signals

NOBODY = {"arrivals_per_s": 0.0, "arriving_tokens_per_s": 0.0, "utilization_ratio": None}


class Pool:
    """A pool and the scaling state between decisions; it begins with no replica."""

    def __init__(self, desired: int = 0, **given: object) -> None:
        self.policy: ScalePolicy = replace(policy(), **{"min_replicas": 0, "idle_after_s": 600.0, **given})  # type: ignore[arg-type]
        self.state = ScalerState(desired=desired)

    def __call__(self, at_s: float, ready: int, forecast: Forecast | None = None, **given: object) -> Scaling:
        now: PoolSignals = signals(at_s, ready, **{**NOBODY, **given})
        self.state, scaling = decide(self.state, self.policy, now, at_s, forecast)
        return scaling


def test_worked_example_of_a_night() -> None:
    pool = Pool()
    assert pool(0, 0, waking=5, arrivals_per_s=5.0) == Scaling(
        1, "demand", "5 requests wait: the pool starts from zero"
    )
    for at_s in range(15, 90, 15):
        assert pool(at_s, 0, starting=1, waking=5).desired == 1
    for at_s in range(90, 200, 15):
        assert pool(at_s, 1, open_requests=2).desired == 1
    assert pool(200, 1).desired == 1
    assert pool(799, 1).desired == 1
    assert pool(800, 1) == Scaling(0, "idle", "no requests for 600 s: the pool scales to zero")
    assert pool(815, 0) == Scaling(0, "idle", "no replicas: the next request starts one")


def test_no_second_start_before_the_first_replica_serves() -> None:
    pool = Pool()
    for at_s in range(0, 300, 15):
        foreseen = Forecast(at_s, 60.0, 9, 10_000.0, "last")
        assert (
            pool(at_s, 0, foreseen, waking=500, arrivals_per_s=50.0, queue_seconds=30.0, kv_usage_ratio=0.99).desired
            == 1
        )
    assert pool(300, 1, Forecast(300, 60.0, 9, 10_000.0, "last"), arrivals_per_s=50.0).desired == 9


def test_forecast_does_not_start_a_pool_from_zero() -> None:
    assert Pool()(0, 0, Forecast(0, 60.0, 3, 10_000.0, "day")).desired == 0


def test_scale_down_rule_keeps_the_last_replica() -> None:
    pool = Pool(desired=3, idle_after_s=10**6, quiet_s=0.0, startup_s=0.0)
    wanted = [
        pool(at_s, pool.state.desired or 0, arrivals_per_s=0.1, utilization_ratio=0.01).desired
        for at_s in range(0, 9000, 15)
    ]
    assert wanted[-1] == 1, "utilization < 40% for 15m holds all the time; somebody asks all the same"


def test_idle_pool_ends_all_replicas_at_once() -> None:
    pool = Pool(desired=4)
    assert pool(0, 4).desired == 4
    assert pool(600, 4).desired == 0


@pytest.mark.parametrize(
    "busy",
    [{"arrivals_per_s": 0.03}, {"queued_tokens": 10.0}, {"waking": 1}, {"open_requests": 1}, {"arrivals_per_s": None}],
)
def test_any_work_or_unknown_signals_keep_the_pool_up(busy: dict[str, object]) -> None:
    pool = Pool(desired=1)
    for at_s in range(0, 3000, 15):
        assert pool(at_s, 1, **busy).desired == 1
    assert pool(3000, 1).desired == 1
    assert pool(3600, 1).desired == 0


def test_replica_started_for_a_refused_request_stays_until_its_retry() -> None:
    """A start takes 170 s and the pool is idle after 60 s; no request waits meanwhile."""
    pool = Pool(idle_after_s=60.0, startup_s=170.0)
    assert pool(0, 0, waking=1).desired == 1
    for at_s in range(15, 170, 15):
        assert pool(at_s, 0, starting=1).desired == 1
    assert pool(170, 1).desired == 1
    assert pool(229, 1).desired == 1
    assert pool(230, 1).desired == 0


def test_start_that_never_serves_is_abandoned_without_waiting_requests() -> None:
    pool = Pool(idle_after_s=60.0, startup_s=100.0)
    assert pool(0, 0, waking=1).desired == 1
    wanted = {at_s: pool(at_s, 0, starting=1).desired for at_s in range(15, 600, 15)}
    assert (wanted[270], wanted[285]) == (1, 0), "60 s and two starts of 100 s, from 15 s on"


def test_stale_signals_neither_start_nor_stop_a_pool() -> None:
    pool = Pool(desired=1)
    assert pool(0, 1).desired == 1
    stale = signals(500, 1, **NOBODY)
    pool.state, scaling = decide(pool.state, pool.policy, stale, 600.0)
    assert (scaling.desired, scaling.cause) == (1, "blind")
    assert pool(615, 1).desired == 1 and pool(1214, 1).desired == 1
    assert pool(1215, 1).desired == 0, "idle from the first look on that knew it again"


def test_minimum_of_one_holds() -> None:
    pool = Pool(desired=1, min_replicas=1)
    assert pool(0, 1).desired == 1
    assert pool(10_000, 1).desired == 1
