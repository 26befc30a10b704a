"""Scaling invariants for any signals: bounds hold, direction changes are rare, no shrinking on stale signals, and more
load never wants fewer replicas.
"""

from dataclasses import replace
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from functions.decisions.autoscaling.decide import ScalerState, decide
from functions.decisions.autoscaling.forecast import Forecast
from functions.decisions.autoscaling.policy import ScalePolicy
from functions.decisions.autoscaling.signals import PoolSignals
from tests.decisions.autoscaling.scaling_cases import policy, signals

PERIOD_S = 15
POLICY = policy(
    ("p99_ttft > 1.2 * slo for 60s: +10%", "queue_seconds > 0.5: +5%", "kv_usage > 85% for 3m: +5%"),
    ("utilization < 70%: -1", "kv_usage < 20%: -2"),
    min_replicas=2,
    max_replicas=40,
    startup_s=60.0,
)


def maybe(values: st.SearchStrategy[float]) -> st.SearchStrategy[float | None]:
    return st.none() | values


@st.composite
def looks(draw: st.DrawFn) -> tuple[PoolSignals, int | None, float]:
    """Draw signals, a forecast and the age of both; the run adds the replica counts."""
    measured = signals(
        0.0,
        0,
        queue_seconds=draw(maybe(st.sampled_from([0.0, 0.4, 0.6, 5.0]))),
        ttft_p99_s=draw(maybe(st.sampled_from([0.1, 0.7]))),
        kv_usage_ratio=draw(maybe(st.sampled_from([0.1, 0.5, 0.9]))),
        utilization_ratio=draw(maybe(st.floats(0.0, 1.0))),
        arrivals_per_s=draw(maybe(st.sampled_from([0.0, 10.0]))),
    )
    return measured, draw(st.none() | st.integers(0, 60)), draw(st.sampled_from([0.0, 0.0, 0.0, 100.0]))


def run(
    steps: list[tuple[PoolSignals, int | None, float]], scale_policy: ScalePolicy
) -> list[tuple[float, int, PoolSignals]]:
    """Run the decisions; new replicas start four rounds after the decision and removed ones end at once."""
    state, ready, coming, sizes = ScalerState(), 5, [], []
    for number, (measured, needed, age_s) in enumerate(steps):
        now_s = float(number * PERIOD_S)
        ready += sum(count for at_s, count in coming if at_s <= now_s)
        coming = [(at_s, count) for at_s, count in coming if at_s > now_s]
        starting = sum(count for _, count in coming)
        seen = replace(measured, at_s=now_s - age_s, ready=ready, starting=starting)
        forecast = Forecast(now_s, 60.0, needed, 0.0, "day") if needed is not None else None
        state, scaling = decide(state, scale_policy, seen, now_s, forecast)
        if scaling.desired > ready + starting:
            coming.append((now_s + 60.0, scaling.desired - ready - starting))
        ready = min(ready, max(0, scaling.desired - starting))
        sizes.append((now_s, scaling.desired, seen))
    return sizes


@settings(max_examples=25, deadline=None)
@given(st.lists(looks(), min_size=2, max_size=240))
def test_any_signals_keep_the_pool_in_bounds_and_shrink_it_one_by_one(
    steps: list[tuple[PoolSignals, int | None, float]],
) -> None:
    sizes = run(steps, POLICY)
    assert all(2 <= size <= 40 for _, size, _ in sizes)
    for (_, before, _), (now_s, after, seen) in pairwise(sizes):
        assert after >= before - 1
        if after < before:
            assert now_s - seen.at_s <= POLICY.stale_s
            assert seen.ready == before
            assert not seen.starting


@settings(max_examples=25, deadline=None)
@given(st.lists(looks(), min_size=2, max_size=240))
def test_any_signals_change_direction_rarely(steps: list[tuple[PoolSignals, int | None, float]]) -> None:
    """240 rounds are an hour: the pool changes from growing to shrinking at most 3600 / 300 times."""
    sizes = run(steps, POLICY)
    direction, turned_s = 0, []
    for (_, before, _), (now_s, after, _) in pairwise(sizes):
        if after < before and direction > 0:
            turned_s.append(now_s)
        direction = direction if after == before else after - before
    assert len(turned_s) <= 12
    assert all(later - earlier >= 300.0 for earlier, later in pairwise(turned_s))


@settings(max_examples=100, deadline=None)
@given(
    st.integers(1, 30),
    st.tuples(st.floats(0, 2), st.floats(0, 2), st.floats(0, 1), st.floats(0, 1), st.integers(0, 60)),
    st.tuples(st.floats(0, 2), st.floats(0, 2), st.floats(0, 1), st.floats(0, 1), st.integers(0, 60)),
)
def test_more_load_never_wants_fewer_replicas(
    ready: int, one: tuple[float, float, float, float, int], other: tuple[float, float, float, float, int]
) -> None:
    quiet = ScalerState(desired=ready, up_since_s=(None, None, None), down_since_s=(0.0, 0.0), quiet_until_s=0.0)
    light, heavy = (tuple(side(pair) for pair in zip(one, other, strict=True)) for side in (min, max))

    def wanted(load: tuple[float, ...]) -> int:
        seen = signals(
            1000.0, ready, queue_seconds=load[0], ttft_p99_s=load[1], kv_usage_ratio=load[2], utilization_ratio=load[3]
        )
        return decide(quiet, POLICY, seen, 1000.0, Forecast(1000.0, 60.0, int(load[4]), 0.0, "day"))[1].desired

    assert wanted(light) <= wanted(heavy)
