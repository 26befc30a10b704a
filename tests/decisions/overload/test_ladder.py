"""Overload ladder: rungs turn on in order and ahead of need, turn off in reverse order, and do not flap."""

from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from functions.decisions.autoscaling.signals import PoolSignals
from functions.decisions.overload.ladder import (
    MAX_PATIENCE,
    OFF,
    QUIET_S,
    RELAPSE_S,
    RUNGS,
    SETTLE_S,
    LadderState,
    Means,
    RungName,
    Rungs,
    step,
)

ALL_MEANS = Means(wait_s=0.5, replica_tokens_per_s=5_000.0, shiftable_ratio=0.5, startable=50)
ONLY_SHED = Means(wait_s=0.5, replica_tokens_per_s=5_000.0)
CALM = PoolSignals(
    at_s=0.0, ready=4, warm=2, arriving_tokens_per_s=10_000.0, arrivals_per_s=10.0, queue_seconds=0.0,
    foreground_queued_tokens=0.0,
)  # fmt: skip
FLOOD = replace(
    CALM, arriving_tokens_per_s=100_000.0, arrivals_per_s=100.0, queue_seconds=0.45, foreground_queued_tokens=5_000.0
)
Script = Iterable[tuple[float, PoolSignals]]


def walk(script: Script, means: Means, state: LadderState | None = None) -> list[tuple[float, Rungs, LadderState]]:
    """Step once a second through each of the signals for its duration."""
    now_s = state.seen_s if state is not None and state.seen_s is not None else 0.0
    state = state or LadderState()
    seen = []
    for seconds, signals in script:
        for _ in range(round(seconds)):
            state, rungs = step(state, replace(signals, at_s=now_s), means, now_s)
            seen.append((now_s, rungs, state))
            now_s += 1.0
    return seen


def first(seen: list[tuple[float, Rungs, LadderState]], rung: RungName) -> float | None:
    return next((now_s for now_s, rungs, _ in seen if rung in rungs.on), None)


def test_worked_example_of_the_ladder() -> None:
    state = LadderState(tokens_per_s=100_000.0, seen_s=9.0)
    seen = walk([(1, CALM), (20, FLOOD)], ALL_MEANS, replace(state, seen_s=9.0))
    assert [first(seen, rung) for rung in RUNGS] == [11.0, 12.0, 13.0, 14.0]
    last = next(rungs for now_s, rungs, _ in seen if now_s == 14.0)
    assert last.borrow == 2
    assert last.provision == 19


def test_rungs_turn_on_in_order_and_off_in_reverse() -> None:
    up = walk([(5, CALM), (60, FLOOD)], ALL_MEANS)
    came = [first(up, rung) for rung in RUNGS]
    assert None not in came
    assert came[:3] == sorted(came[:3], key=lambda at_s: at_s or 0.0)
    down = walk([(400, CALM)], ALL_MEANS, up[-1][2])
    left = [max(now_s for now_s, rungs, _ in down if rung in rungs.on) for rung in RUNGS]
    assert left == sorted(left, reverse=True)
    assert all(earlier - later >= quiet for earlier, later, quiet in zip(left, left[1:], QUIET_S, strict=False))
    assert down[-1][1] == OFF


def test_a_rung_without_means_is_passed_over() -> None:
    no_warm = replace(FLOOD, warm=0)
    seen = walk([(40, no_warm)], replace(ALL_MEANS, shiftable_ratio=0.0, start_s=5.0))
    assert first(seen, "shift") is None
    assert first(seen, "borrow") is None
    assert first(seen, "shed") is not None
    assert first(seen, "provision") is not None


def test_ladder_only_sheds_without_other_means() -> None:
    seen = walk([(200, replace(FLOOD, warm=0))], replace(ONLY_SHED, band_ratios=(0.5, 0.2, 0.3)))
    assert {rung for _, rungs, _ in seen for rung in rungs.on} == {"shed"}
    assert seen[-1][1].kept_ratios[0] == 1.0
    assert seen[-1][1].kept_ratios[2] < 0.1


def test_slow_start_begins_ahead_of_its_rung_and_a_fast_one_does_not() -> None:
    means = replace(ALL_MEANS, shiftable_ratio=1.0)  # shift absorbs all of it: the ladder need not climb
    some = replace(FLOOD, arriving_tokens_per_s=30_000.0, warm=0)
    carried = replace(means, shiftable_ratio=0.2)
    slow, fast = walk([(7, some)], carried), walk([(7, some)], replace(carried, start_s=5.0, shiftable_ratio=1.0))
    assert first(slow, "provision") is not None
    assert first(fast, "provision") is None


def test_shifted_load_moves_to_borrowed_replicas_after_a_while() -> None:
    """Requests do not use another model for good while warm replicas are idle."""
    seen = walk([(60, FLOOD)], replace(ALL_MEANS, shiftable_ratio=1.0))
    shifted, borrowed = first(seen, "shift"), first(seen, "borrow")
    assert shifted is not None
    assert borrowed is not None
    assert borrowed - shifted == pytest.approx(SETTLE_S, abs=1.0)


def test_starting_replicas_are_counted() -> None:
    seen = walk([(30, replace(FLOOD, starting=19, warm=2))], replace(ALL_MEANS, shiftable_ratio=0.0))
    assert seen[-1][1].provision == 19  # 25 are wanted, 4 serve, 2 are warm
    # at most as many as may start
    assert step(seen[-1][2], FLOOD, replace(ALL_MEANS, startable=3), 30.0)[1].provision == 3


def test_offered_load_keeps_shed_on_although_the_queue_is_short() -> None:
    """Shed and shift empty the queue; they stay on while five times the capacity arrives."""
    relieved = replace(FLOOD, queue_seconds=0.0, foreground_queued_tokens=0.0)
    seen = walk([(30, FLOOD), (600, relieved)], ONLY_SHED)
    assert "shed" in seen[-1][1].on


def test_between_strain_and_calm_nothing_moves() -> None:
    between = replace(CALM, arriving_tokens_per_s=19_000.0, queue_seconds=0.2)
    assert walk([(300, between)], ALL_MEANS)[-1][1] == OFF
    up = walk([(30, FLOOD), (60, between)], ALL_MEANS)
    on = up[-1][1].on
    assert on
    assert walk([(300, between)], ALL_MEANS, up[-1][2])[-1][1].on == on


def test_unknown_signals_change_no_rung_and_request_nothing() -> None:
    up = walk([(30, FLOOD)], ALL_MEANS)
    unknown = PoolSignals(at_s=0.0, ready=4, warm=2)
    later = walk([(600, unknown)], ALL_MEANS, up[-1][2])[-1]
    assert later[1].on == up[-1][1].on
    assert (later[1].borrow, later[1].provision, later[1].shift_ratio) == (0, 0, 0.0)
    assert walk([(600, unknown)], ALL_MEANS)[-1][1].on == ()


def test_unknown_rate_borrows_one_warm_replica_at_a_time() -> None:
    refused = replace(FLOOD, shed_per_s=50.0, overflow_per_s=50.0)
    seen = walk([(30, refused)], replace(ALL_MEANS, replica_tokens_per_s=None))
    assert seen[-1][1].borrow == 1
    assert seen[-1][1].shift_ratio == 0.0


def test_refusing_pool_reveals_its_rate() -> None:
    full = replace(
        FLOOD, arriving_tokens_per_s=54_000.0, arrivals_per_s=90.0, shed_per_s=27.0, overflow_per_s=27.0,
        degraded_per_s=15.0, warm=0,
    )  # fmt: skip
    learnt = replace(ALL_MEANS, replica_tokens_per_s=10_000.0, shiftable_ratio=0.0)
    assert walk([(90, full)], learnt)[-1][1].provision == 6  # 54,000 / (0.8 x 7,200) = 10, and 4 serve
    assert walk([(90, full)], replace(learnt, replica_tokens_per_s=None))[-1][1].provision == 6
    assert walk([(90, replace(full, shed_per_s=0.0, overflow_per_s=0.0))], learnt)[-1][1].provision == 3
    used = replace(full, queue_seconds=0.0, utilization_ratio=0.9)
    assert walk([(90, used)], learnt)[-1][1].provision == 6, "nobody waits, but it is full"


def test_spike_under_shed_provisions_replicas() -> None:
    """Shed admits no more than the pool serves, so the pool is never full: its refusals alone count as strain."""
    relieved = replace(
        FLOOD, arriving_tokens_per_s=54_000.0, arrivals_per_s=90.0, shed_per_s=27.0, overflow_per_s=27.0,
        degraded_per_s=15.0, warm=0, queue_seconds=0.0, utilization_ratio=0.7,
    )  # fmt: skip
    learnt = replace(ALL_MEANS, replica_tokens_per_s=10_000.0, shiftable_ratio=0.0)
    assert walk([(90, relieved)], learnt)[-1][1].provision == 6


@pytest.mark.parametrize(
    "refuses",
    [
        {"shed_per_s": 3.0},
        {"shed_per_s": 3.0, "queued_tokens": 200_000.0},
        {"shed_per_s": 3.0, "overflow_per_s": 3.0, "utilization_ratio": 0.05},
    ],
    ids=["not for want of room", "beside batch that waits", "though it is idle"],
)
def test_nearly_idle_pool_ignores_refusals(refuses: dict[str, float]) -> None:
    idle = replace(CALM, arrivals_per_s=10.0, arriving_tokens_per_s=5_000.0, degraded_per_s=0.0, **refuses)
    assert all(rungs == OFF for _, rungs, _ in walk([(1_200, idle)], ALL_MEANS))


def test_refusals_for_other_reasons_do_not_make_a_busy_pool_look_slow() -> None:
    odd = replace(
        CALM, arriving_tokens_per_s=15_000.0, shed_per_s=2.0, overflow_per_s=0.0, degraded_per_s=0.0,
        utilization_ratio=0.85,
    )  # fmt: skip
    assert all(rungs == OFF for _, rungs, _ in walk([(300, odd)], ALL_MEANS))


def test_waiting_batch_does_not_keep_rungs_on() -> None:
    seen = walk([(30, FLOOD), (600, replace(CALM, queued_tokens=1e6))], ALL_MEANS)
    assert seen[25][1].on
    assert seen[-1][1] == OFF


def test_refusals_without_arrivals_do_not_divide_by_zero() -> None:
    gone = replace(FLOOD, arrivals_per_s=0.0, arriving_tokens_per_s=0.0, overflow_per_s=3.0, degraded_per_s=0.0)
    assert walk([(5, gone)], ALL_MEANS)


def test_relapse_lengthens_the_required_calm() -> None:
    quick = replace(CALM, arriving_tokens_per_s=0.0)
    state, times = LadderState(), []
    for _ in range(6):
        seen = walk([(30, FLOOD), (200, quick)], ONLY_SHED, state)
        state = seen[-1][2]
        times.append(sum("shed" in rungs.on for _, rungs, _ in seen))
    assert times == sorted(times)
    assert state.patience == MAX_PATIENCE
    after = walk([(2 * RELAPSE_S, CALM), (20, FLOOD)], ONLY_SHED, state)
    assert after[-1][2].patience == 1


SIGNALS = st.builds(
    PoolSignals,
    at_s=st.just(0.0),
    ready=st.integers(0, 20),
    starting=st.integers(0, 5),
    warm=st.integers(0, 5),
    arrivals_per_s=st.floats(0.0, 100.0),
    arriving_tokens_per_s=st.none() | st.floats(0.0, 1e6),
    queue_seconds=st.none() | st.floats(0.0, 10.0),
    foreground_queued_tokens=st.none() | st.floats(0.0, 1e6),
    shed_per_s=st.none() | st.floats(0.0, 100.0),
    overflow_per_s=st.none() | st.floats(0.0, 100.0),
    degraded_per_s=st.none() | st.floats(0.0, 100.0),
)
MEANS = st.builds(
    Means,
    wait_s=st.floats(0.05, 10.0),
    replica_tokens_per_s=st.none() | st.floats(1.0, 1e5),
    band_ratios=st.just((0.5, 0.2, 0.3)),
    shiftable_ratio=st.sampled_from((0.0, 0.3, 1.0)),
    startable=st.integers(0, 20),
    start_s=st.sampled_from((1.0, 300.0)),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(SIGNALS, min_size=1, max_size=120), MEANS, st.sampled_from((0.5, 1.0, 5.0)))
def test_nothing_flaps_whatever_the_signals_do(told: list[PoolSignals], means: Means, every_s: float) -> None:
    state = LadderState()
    for number, signals in enumerate(told):
        now_s, before = number * every_s, state
        state, rungs = step(before, signals, means, now_s)
        assert all(0.05 <= ratio <= 1.0 for ratio in rungs.kept_ratios)
        assert rungs.kept_ratios[0] == 1.0
        assert 0.0 <= rungs.shift_ratio <= means.shiftable_ratio
        assert 0 <= rungs.borrow <= signals.warm
        assert 0 <= rungs.provision <= signals.starting + means.startable
        if state.level < before.level:
            assert state.level == before.level - 1
            usable = (True, means.shiftable_ratio > 0.0, signals.warm > 0, means.startable + signals.starting > 0)
            assert not usable[state.level] or now_s - before.since_s >= QUIET_S[state.level]


@settings(max_examples=60, deadline=None)
@given(st.lists(SIGNALS, min_size=1, max_size=60), MEANS)
def test_same_signals_give_the_same_rungs(told: list[PoolSignals], means: Means) -> None:
    runs = []
    for _ in range(2):
        state, seen = LadderState(), []
        for number, signals in enumerate(told):
            state, rungs = step(state, signals, means, float(number))
            seen.append(rungs)
        runs.append(seen)
    assert runs[0] == runs[1]
