"""Detection of slow replicas: works in pools of any size, accounts for load, and restarts one at a time with growing
pauses.
"""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from functions.api.ids import PoolName, ReplicaId
from functions.decisions.health.pace import Pace, PaceMeter, WorkCounters, observe
from functions.decisions.health.slow_replica import (
    LOOKS_MIN,
    PoolState,
    PoolWatch,
    Seen,
    SlowPolicy,
    Verdict,
    record_restart,
    update_watch,
    verdict,
)

POLICY = SlowPolicy()
OLD_UNIX_S, NOW_UNIX_S = 1_000_000.0, 1_100_000.0
GAPS_MS = {"a": 20.0}


def pace(number: int, gap_ms: float | None = 20.0, **changes: Any) -> Pace:
    made: dict[str, Any] = {"requests": 20, "tokens": 500, "running": 3.0, "waiting": 0.0, "queue_ms": 5.0}
    return Pace(number=number, gap_ms=gap_ms, **{**made, "prefill_ms": 0.2, **changes})


def state(**paces: Pace | None) -> PoolState:
    ready = tuple(Seen(ReplicaId(name), each, 0.2, OLD_UNIX_S) for name, each in paces.items())
    return PoolState(PoolName("base"), ready)


def watched(looks: int, made: Any, *, every_s: float = 10.0, watch: PoolWatch | None = None) -> tuple[PoolWatch, float]:
    """Return the watch after this many rounds; `made` returns the paces of a round."""
    watch, now_s = watch or PoolWatch(), 0.0
    for number in range(1, looks + 1):
        now_s = number * every_s
        watch = update_watch(watch, made(number), now_s)
    return watch, now_s


def judged(watch: PoolWatch, now: PoolState, now_s: float, policy: SlowPolicy = POLICY) -> Verdict | None:
    return verdict(watch, now, policy, now_s, NOW_UNIX_S)


def test_worked_example_of_a_pool_of_two() -> None:
    def slow(number: int, running: float = 4.0) -> PoolState:
        return state(a=pace(number), b=pace(number, 130.0, running=running))

    watch, now_s = watched(7, slow)
    found = judged(watch, slow(7), now_s)
    assert found is not None
    assert (found.replica_id, found.held) == ("b", "")
    assert "130 ms between two tokens" in found.why
    watch, now_s = watched(7, lambda number: slow(number, 30.0))
    assert judged(watch, slow(7, 30.0), now_s) is None


@pytest.mark.parametrize("fellows", [1, 2, 3, 8])
@pytest.mark.parametrize("slow", [{"gap_ms": 200.0}, {"queue_ms": 3000.0}, {"prefill_ms": 2.0}])
def test_each_measure_finds_a_slow_replica_in_any_pool_size(fellows: int, slow: dict[str, float]) -> None:
    def made(number: int) -> PoolState:
        return state(slow=pace(number, **slow), **{f"r{each}": pace(number) for each in range(fellows)})

    watch, now_s = watched(7, made)
    found = judged(watch, made(7), now_s)
    assert found is not None
    assert found.replica_id == "slow"


def test_two_slow_replicas_restart_one_after_the_other() -> None:
    def made(number: int) -> PoolState:
        return state(a=pace(number), b=pace(number), c=pace(number, 200.0), d=pace(number, 300.0))

    watch, now_s = watched(7, made)
    now = made(7)
    first = judged(watch, now, now_s)
    assert first is not None
    assert first.replica_id == "d", "the slowest"
    watch = record_restart(watch, now.ready[3], now_s)
    second = judged(watch, now, now_s + 1.0)
    assert second is not None
    assert (second.replica_id, second.held) == ("c", "d of the same pool is being restarted")
    back = replace(now, ready=(*now.ready[:3], replace(now.ready[3], began_unix_s=NOW_UNIX_S, pace=None)))
    watch = update_watch(watch, back, now_s + 60.0)
    assert watch.under_way is None
    third = judged(watch, back, now_s + 60.0)
    assert third is not None
    assert "the next may follow in" in third.held


def test_replica_is_slow_only_after_a_minute() -> None:
    def made(number: int) -> PoolState:
        return state(a=pace(number), b=pace(number, 200.0))

    for looks in range(1, 7):
        watch, now_s = watched(looks, made)
        assert judged(watch, made(looks), now_s) is None
    few, now_s = watched(LOOKS_MIN - 1, made, every_s=100.0)
    assert judged(few, made(1), now_s) is None


def test_two_good_rounds_clear_a_replica_and_one_does_not() -> None:
    def made(number: int) -> PoolState:
        return state(a=pace(number), b=pace(number, 20.0 if number in (3, 6) else 200.0))

    watch, now_s = watched(8, made)
    assert judged(watch, made(8), now_s) is not None
    watch, now_s = watched(8, lambda number: state(a=pace(number), b=pace(number, 20.0 if number in (3, 4) else 200.0)))
    assert judged(watch, made(8), now_s) is None


def test_replica_with_too_few_requests_stays_suspected() -> None:
    """Gateways send fewer requests to a slow replica; too few samples do not prove that it is healthy."""

    def made(number: int) -> PoolState:
        few = pace(number, 200.0, requests=1, tokens=10)
        return state(a=pace(number), b=pace(number, 200.0) if number % 2 else few)

    watch, now_s = watched(7, made)
    assert judged(watch, made(7), now_s) is not None


def test_single_replica_is_never_slow() -> None:
    watch, now_s = watched(10, lambda number: state(a=pace(number, 5000.0)))
    assert judged(watch, state(a=pace(10, 5000.0)), now_s) is None


def test_differences_below_the_minimum_are_ignored() -> None:
    def made(number: int) -> PoolState:
        return state(a=pace(number, 0.1, queue_ms=0.01), b=pace(number, 4.0, queue_ms=50.0))

    watch, now_s = watched(10, made)
    assert judged(watch, made(10), now_s) is None


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"unsettled": 1}, "not ready"),
        ({"suspected": 2}, "sends no heartbeats"),
        ({"overloaded": True}, "overload ladder"),
        ({"queue_s": 4.0}, "requests wait"),
    ],
)
def test_slow_replica_is_kept_if_the_pool_needs_it(changes: dict[str, Any], why: str) -> None:
    def made(number: int) -> PoolState:
        return replace(state(a=pace(number), b=pace(number, 200.0)), **changes)

    watch, now_s = watched(7, made)
    found = judged(watch, made(7), now_s)
    assert found is not None
    assert why in found.held


def test_restart_waits_if_the_others_lack_room() -> None:
    def made(number: int) -> PoolState:
        now = state(a=pace(number), b=pace(number, 200.0))
        return replace(now, ready=tuple(replace(each, kv_usage_ratio=0.6) for each in now.ready))

    watch, now_s = watched(7, made)
    found = judged(watch, made(7), now_s)
    assert found is not None
    assert "no room" in found.held


def test_restart_waits_after_a_recent_start() -> None:
    """A controller that lost its record of restarts does not repeat them."""

    def made(number: int) -> PoolState:
        now = state(a=pace(number), b=pace(number, 200.0))
        return replace(now, ready=(replace(now.ready[0], began_unix_s=NOW_UNIX_S - 100.0), now.ready[1]))

    watch, now_s = watched(7, made)
    found = judged(watch, made(7), now_s)
    assert found is not None
    assert "started 100 s ago" in found.held


def test_each_restart_doubles_the_time_until_the_next() -> None:
    def made(number: int) -> PoolState:
        return state(a=pace(number), b=pace(number, 200.0))

    watch, now_s, waited_s = PoolWatch(), 0.0, []
    last_s = None
    for number in range(1, 600):
        now_s = number * 10.0
        watch = update_watch(watch, made(number), now_s)
        found = judged(watch, made(number), now_s)
        if found is not None and not found.held:
            if last_s is not None:
                waited_s.append(now_s - last_s)
            last_s = now_s
            watch = replace(record_restart(watch, made(number).ready[1], now_s), under_way=None)
    assert waited_s == [600.0, 1200.0, 2400.0]


@given(
    st.lists(st.tuples(st.floats(1.0, 500.0), st.floats(0.0, 64.0)), min_size=1, max_size=8),
    st.integers(0, 7),
)
def test_replica_as_fast_as_its_load_explains_is_never_condemned(
    fellows: list[tuple[float, float]], chosen: int
) -> None:
    """A pace in proportion to the load is normal: only a replica slower than FACTOR times what the others' load
    explains is slow.
    """
    gap_ms, running = fellows[chosen % len(fellows)]

    def made(number: int) -> PoolState:
        others = {f"r{each}": pace(number, gap, running=load) for each, (gap, load) in enumerate(fellows)}
        twice = pace(number, gap_ms * 2.0, running=2.0 * running + 1.0)
        return state(**dict.fromkeys(("x", "y", "z"), pace(number, gap_ms, running=running)), **others, me=twice)

    watch, now_s = watched(8, made)
    found = judged(watch, made(8), now_s)
    quickest = min(gap for gap, _ in fellows)
    if quickest >= gap_ms:
        assert found is None or found.replica_id != "me"


@given(st.integers(1, 5), st.lists(st.sampled_from([20.0, 200.0, 400.0]), min_size=1, max_size=5))
def test_last_replica_is_never_restarted_nor_two_at_once(looks: int, gaps_ms: list[float]) -> None:
    def made(number: int) -> PoolState:
        return state(**{f"r{each}": pace(number, gap) for each, gap in enumerate(gaps_ms)})

    watch, now_s = watched(looks + 6, made)
    now = made(looks + 6)
    found = judged(watch, now, now_s)
    if found is not None and not found.held:
        assert len(gaps_ms) > 1
        seen = next(each for each in now.ready if each.replica_id == found.replica_id)
        again = judged(record_restart(watch, seen, now_s), now, now_s)
        assert again is None or again.held


def counters(**changes: float) -> WorkCounters:
    zero: dict[str, Any] = dict.fromkeys(
        ("finished", "queue_s", "prefill_s", "computed_tokens", "gap_s", "gaps", "running", "waiting"), 0
    )
    return WorkCounters(**{**zero, **changes})


def test_worked_example_of_ten_seconds() -> None:
    meter = observe(PaceMeter(), counters(running=1), 0.0)
    for second in range(1, 10):
        meter = observe(meter, counters(running=4), float(second))
        assert meter.pace is None
    done = counters(finished=40, queue_s=2.0, prefill_s=4.0, computed_tokens=10_000, gap_s=30.0, gaps=1000, running=4)
    meter = observe(meter, done, 10.0)
    assert meter.pace is not None
    assert meter.pace.queue_ms == pytest.approx(50.0)
    assert meter.pace.prefill_ms == pytest.approx(0.198, abs=0.001)
    assert meter.pace.gap_ms == pytest.approx(30.0)
    assert (meter.pace.number, meter.pace.running, meter.pace.requests, meter.pace.tokens) == (1, 4.0, 40, 1000)


@pytest.mark.parametrize(
    ("running", "waiting", "read_s", "busy_ratio"),
    [(0, 0, 6.0, 0.6), (1, 0, 0.0, 1.0), (0, 2, 0.0, 1.0), (0, 0, 0.0, 0.0), (3, 0, 25.0, 1.0)],
)
def test_prefill_counts_as_busy_by_counters_or_samples(
    running: int, waiting: int, read_s: float, busy_ratio: float
) -> None:
    """A prompt of one step never shows as running in a sample; one of half a minute ends in none of these seconds."""
    meter = PaceMeter()
    for second in range(11):
        read = counters(prefill_s=read_s * second / 10, finished=second, running=running, waiting=waiting)
        meter = observe(meter, read, float(second))
    assert meter.pace is not None and meter.pace.busy_ratio == pytest.approx(busy_ratio)


def test_idle_engine_has_no_pace() -> None:
    meter = observe(observe(PaceMeter(), counters(), 0.0), counters(), 10.0)
    assert meter.pace is not None
    assert (meter.pace.queue_ms, meter.pace.prefill_ms, meter.pace.gap_ms) == (None, None, None)


def test_a_restarted_engine_is_measured_anew() -> None:
    meter = observe(observe(PaceMeter(), counters(finished=9, gap_s=9.0), 0.0), counters(finished=20, gap_s=20.0), 10.0)
    assert meter.pace is not None
    assert observe(meter, counters(finished=1, gap_s=0.1), 11.0).pace is None
