"""Forecast memory after a gap: the daily pattern is restored, and the gap counts neither as zero traffic nor as a
jump.
"""

from math import pi, sin

import pytest

from functions.decisions.autoscaling.forecast import Demand, forecast_demand, update_demand
from functions.decisions.autoscaling.forecast_memory import FORGOTTEN_S, RESTART_S, Memory, StartupTimes, resume_memory
from functions.decisions.autoscaling.forecast_methods import BIN_S, DAY_S
from tests.decisions.autoscaling.scaling_cases import policy, signals

POLICY = policy(startup_s=300.0)
STARTS = StartupTimes().with_start("disk", 200.0)


def taught(demand: Demand, rates: list[float], begins_s: float = 0.0) -> Demand:
    """Update the demand once a minute with 10 replicas that serve 5,000 tokens a second each."""
    for index, rate in enumerate(rates):
        seen = signals(
            begins_s + index * BIN_S, 10, arriving_tokens_per_s=rate, utilization_ratio=min(0.9, rate / 50_000.0)
        )
        demand = update_demand(demand, seen, POLICY)
    return demand


def test_worked_example_of_a_gap() -> None:
    before = taught(Demand(), [30_000.0] * 31)  # until 0:30
    restarted = resume_memory(Memory(before), 1860.0).demand
    soon = forecast_demand(restarted, POLICY, 1860.0)
    assert soon is not None
    assert soon.demand_per_s == pytest.approx(30_000.0)
    later = resume_memory(Memory(before), 10_800.0).demand
    first = taught(later, [20_000.0], 10_800.0)
    assert forecast_demand(first, POLICY, 10_800.0) is None, "nothing is known of now"
    second = taught(later, [20_000.0] * 2, 10_800.0)
    then = forecast_demand(second, POLICY, 10_860.0)
    assert then is not None
    assert then.demand_per_s == pytest.approx(20_000.0)


def test_no_level_of_the_day_falls_in_a_gap() -> None:
    before = taught(Demand(), [30_000.0] * 600)
    after = taught(resume_memory(Memory(before), 50_000.0).demand, [30_000.0] * 60, 50_000.0)
    known = [level for level in after.day.levels if level is not None]
    assert known == pytest.approx([30_000.0] * len(known))
    unseen = after.day.levels[round(45_000.0 // after.day.slot_s)]
    assert unseen is None, "nobody looked"


def test_learned_morning_survives_a_restart_at_night() -> None:
    minutes = [25_000.0 + 20_000.0 * sin((minute / 1440.0 - 0.25) * 2 * pi) for minute in range(3 * 1440)]
    before = taught(Demand(), minutes)
    begins_s = 3 * DAY_S + 6 * 3600.0
    now = minutes[360:363]
    knowing = forecast_demand(
        taught(resume_memory(Memory(before), begins_s).demand, now, begins_s), POLICY, begins_s + 180.0
    )
    ignorant = forecast_demand(taught(Demand(), now, begins_s), POLICY, begins_s + 180.0)
    assert knowing is not None
    assert ignorant is not None
    assert knowing.demand_per_s > 1.015 * ignorant.demand_per_s, "the morning rises by 2 % in the next 6 minutes"
    assert knowing.by == before.best()


@pytest.mark.parametrize("gap_s", [RESTART_S + 1.0, DAY_S, FORGOTTEN_S, -1.0])
def test_gap_keeps_patterns_and_drops_recent_bins(gap_s: float) -> None:
    before = taught(Demand(), [30_000.0] * 60)
    assert before.looked_s is not None
    after = resume_memory(Memory(before, STARTS), before.looked_s + gap_s)
    assert (after.demand.day, after.demand.scores, after.starts) == (before.day, before.scores, STARTS)
    assert after.demand.replica_per_s == before.replica_per_s
    assert (after.demand.bins, after.demand.ahead, after.demand.open_bin) == ((), (), None)


def test_memory_expires_after_a_month() -> None:
    before = taught(Demand(), [30_000.0] * 60)
    assert before.looked_s is not None
    assert resume_memory(Memory(before, STARTS), before.looked_s + FORGOTTEN_S + 1.0) == Memory()
    assert resume_memory(Memory(starts=STARTS), 1.0) == Memory(starts=STARTS), "never looked: starts are all there is"
