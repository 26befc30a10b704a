"""Autoscalers in the fluid model: the basin, the oracle, decisions of other autoscalers, and a whole day."""

from collections.abc import Iterator
from math import pi, sin

import numpy as np
import pytest

from functions.api.ids import TenantId
from functions.decisions.autoscaling.forecast import Demand
from functions.decisions.autoscaling.policy import ScalePolicy
from functions.simulator.fleet.engine_profile import PROFILES
from functions.simulator.plan.pace import work_s
from functions.simulator.workload.request import WorkloadRequest
from studies.scaling.day import Comparison, Known, learnt
from studies.scaling.day_outcome import DayOutcome
from studies.scaling.fluid_pool import Basin, FluidPool
from studies.scaling.load import Load, joined, load_of
from studies.scaling.oracle import best_utilization, plan
from studies.scaling.others import Bounds, HpaState, KpaState, hpa, kpa
from studies.scaling.scaler import PlannedScaler, ScalerName, StaticScaler
from tests.decisions.autoscaling.scaling_cases import policy, signals

BOUNDS = Bounds(least=1, most=1000)


def flow(soon: list[float], later: list[float] | None = None) -> Load:
    """Return a load with this work per second: ten requests and 1,000 tokens for each second of work."""

    def rows(work: list[float]) -> np.ndarray:
        return np.array([np.array(work) * 10, np.array(work) * 1000, work])

    return Load(rows(soon), rows(later or [0.0] * len(soon)))


def test_worked_example_of_work() -> None:
    assert work_s(1000, 200, PROFILES["h100-8b"]) == pytest.approx(0.221)


def test_load_of_a_workload_separates_jobs() -> None:
    def requests() -> Iterator[WorkloadRequest]:
        yield WorkloadRequest(0.2, TenantId("a"), 1000, 200)
        yield WorkloadRequest(0.9, TenantId("a"), 1000, 200, band=2)
        yield WorkloadRequest(2.5, TenantId("a"), 10, 5)
        yield WorkloadRequest(99.0, TenantId("a"), 10, 5)

    load = load_of(requests(), 4, PROFILES["h100-8b"])
    assert load.requests.tolist() == [2, 0, 1, 0]
    assert load.later[0].tolist() == [1, 0, 0, 0]
    assert load.soon[2][0] == pytest.approx(0.221)
    assert load.tokens.tolist() == [2400, 0, 15, 0]
    assert joined([load, load]).seconds == 8
    assert load.within(2, 4).requests.tolist() == [1, 0]


def test_worked_example_of_the_basin() -> None:
    outcome = FluidPool(Basin(slack_s=1.0), flow([10.2] * 5 + [8.2]), 10).run(StaticScaler(10))
    assert outcome.waits_s == [pytest.approx(10 / 8.2)]
    assert outcome.in_time == pytest.approx(4 * 102.0)  # in the fifth second the wait exceeds a second


def test_jobs_use_leftover_capacity_oldest_first() -> None:
    basin = Basin(later_slack_s=3.0)
    outcome = FluidPool(basin, flow([8.2] * 5 + [0.0] * 10, [8.2] + [0.0] * 14), 10).run(StaticScaler(10))
    assert outcome.attainment_ratio == 1.0
    assert outcome.later_asked == pytest.approx(82.0)
    assert outcome.later_in_time == 0.0  # started five seconds later
    sooner = FluidPool(Basin(later_slack_s=5.0), flow([8.2] * 5 + [0.0] * 10, [8.2] + [0.0] * 14), 10)
    assert sooner.run(StaticScaler(10)).later_attainment_ratio == pytest.approx(1.0)


def test_requests_beyond_the_maximum_wait_are_refused() -> None:
    outcome = FluidPool(Basin(most_wait_s=2.0), flow([100.0] * 15), 10).run(StaticScaler(10))
    assert max(outcome.waits_s) == pytest.approx(2.0)
    assert 0.85 < outcome.refused / outcome.asked < 0.92


def test_replicas_start_after_their_start_time_and_are_paid_from_its_beginning() -> None:
    pool = FluidPool(Basin(startup_s=60, drain_s=20), flow([1.0] * 150), 2)
    outcome = pool.run(PlannedScaler([2] * 10 + [4] * 190, 1.0, 0.0))
    assert outcome.replicas == [2, 4, 4, 4, 4, 4, 4, 4, 4, 4]
    assert outcome.grown == 2
    assert outcome.replica_s == 15 * 2 + 135 * 4


def test_removed_replica_is_paid_until_drained() -> None:
    outcome = FluidPool(Basin(drain_s=20), flow([1.0] * 60), 3).run(StaticScaler(2))
    assert outcome.replicas == [3, 3, 2, 2]
    assert outcome.replica_s == 15 * 3 + 20 * 3 + 25 * 2


def test_turns_count_changes_between_growing_and_shrinking() -> None:
    outcome = DayOutcome()
    for change in (1, 2, 0, -1, -1, 0, 3, -1):
        outcome.scaled(change)
    assert (outcome.turns, outcome.grown) == (3, 6)


def test_worked_example_of_the_oracle() -> None:
    soon = [20.0] * 15 + [26.0] * 15 + [23.0] * 15 + [19.0] * 15
    assert plan(flow(soon, [4.0] * 60), 0.8, 300.0) == [33]


def test_oracle_keeps_replicas_it_soon_needs() -> None:
    minutes = [10.0] * 5 + [2.0] * 3 + [10.0] * 5 + [2.0] * 20
    needed = plan(flow([value for value in minutes for _ in range(60)]), 1.0, 300.0)
    assert needed[:13] == [10] * 13
    assert needed[20:] == [2] * 13


def test_the_best_utilization_is_the_highest_that_keeps_the_promise() -> None:
    assert best_utilization(lambda ratio: ratio < 0.77) == pytest.approx(0.77, abs=0.01)


def test_a_planned_replica_is_started_ahead_of_its_time() -> None:
    scaler = PlannedScaler([1, 1, 5, 1, 1], 60.0, 60.0)
    assert [scaler.decide_replicas(signals(0, 1), now_s) for now_s in (0.0, 15.0, 60.0, 120.0, 185.0)] == [
        5,
        5,
        5,
        5,
        1,
    ]


def test_worked_examples_of_hpa() -> None:
    assert hpa(HpaState(), signals(0, 10, arrivals_per_s=50.0), 0.0, target_per_s=3.2, bounds=BOUNDS)[1] == 16
    assert hpa(HpaState(), signals(0, 10, arrivals_per_s=34.0), 0.0, target_per_s=3.2, bounds=BOUNDS)[1] == 10
    assert hpa(HpaState(), signals(0, 10, arrivals_per_s=500.0), 0.0, target_per_s=3.2, bounds=BOUNDS)[1] == 20


def test_hpa_holds_the_maximum_of_five_minutes_before_shrinking() -> None:
    state, sizes = HpaState(), []
    for at_s in range(0, 360, 15):
        rate = 32.0 if at_s < 15 else 3.0
        state, desired = hpa(state, signals(at_s, 10, arrivals_per_s=rate), at_s, target_per_s=3.2, bounds=BOUNDS)
        sizes.append(desired)
    assert sizes[:20] == [10] * 20
    assert sizes[20:] == [1] * 4


def test_kpa_panics_upwards_and_does_not_shrink_meanwhile() -> None:
    state, desired = kpa(KpaState(), signals(0, 10), 40.0, 0.0, target=4.0, bounds=BOUNDS)
    assert desired == 10
    state, desired = kpa(state, signals(15, 10), 100.0, 15.0, target=4.0, bounds=BOUNDS)
    assert desired == 25
    state, desired = kpa(state, signals(30, 10), 1.0, 30.0, target=4.0, bounds=BOUNDS)
    assert desired == 25
    for at_s in range(90, 181, 15):
        state, desired = kpa(state, signals(at_s, 25), 1.0, at_s, target=4.0, bounds=BOUNDS)
    assert desired == 13  # at most by half of the ready replicas


def wave(seconds: int, seed: int) -> Load:
    """Return an hour-long wave with bursts, between 10 and 30 replicas' worth of work."""
    rng = np.random.default_rng(seed)
    work = [20.0 + 10.0 * sin(2 * pi * second / 3600.0) for second in range(seconds)]
    return flow([max(0.0, value + rng.normal(0.0, 1.0)) for value in work])


@pytest.fixture(scope="module")
def hours() -> dict[ScalerName, DayOutcome]:
    """Run two hours under five autoscalers that have seen one earlier hour."""
    scale_policy = policy(("queue_seconds > 0.5: +5%",), ("utilization < 78% for 2m: -1",), startup_s=120.0, slo_s=1.0)
    comparison = Comparison(
        basin=Basin(startup_s=120),
        policy=scale_policy,
        known=Known(load=wave(7200, 1), before=wave(3600, 2)),
    )
    return dict(comparison.run(("oracle", "shoal", "rules", "static", "hpa"), lambda line: None))


def test_shoal_keeps_the_promise_near_the_oracles_cost(hours: dict[ScalerName, DayOutcome]) -> None:
    assert hours["shoal"].attainment_ratio >= 0.999
    assert hours["oracle"].attainment_ratio >= 0.999
    assert hours["shoal"].replica_s <= 1.15 * hours["oracle"].replica_s
    assert 0.65 <= hours["shoal"].utilization_ratio <= 0.82
    assert hours["shoal"].replica_s < hours["static"].replica_s


def test_rules_alone_react_too_late(hours: dict[ScalerName, DayOutcome]) -> None:
    assert hours["rules"].attainment_ratio < hours["shoal"].attainment_ratio


def test_figures_contain_turns_and_rounded_hours(hours: dict[ScalerName, DayOutcome]) -> None:
    figures = hours["static"].figures()
    assert figures["turns"] == 0
    assert figures["replica_hours"] == round(hours["static"].replica_s / 3600, 1)


def test_lessons_teach_the_rate_of_a_replica() -> None:
    demand = learnt(Demand(), policy(), wave(1800, 3), -1800.0)
    assert demand.replica_per_s == pytest.approx(1000.0, rel=0.02)


def test_the_same_day_gives_the_same_figures() -> None:
    def run() -> dict[str, object]:
        scale_policy: ScalePolicy = policy(startup_s=60.0)
        known = Known(load=wave(1800, 5), before=None)
        comparison = Comparison(basin=Basin(startup_s=60), policy=scale_policy, known=known)
        return {name: outcome.figures() for name, outcome in comparison.run(("shoal", "kpa"), lambda line: None)}

    assert run() == run()
