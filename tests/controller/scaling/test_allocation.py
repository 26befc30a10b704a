"""Which replicas serve and which are warm: as few as possible change, and none without need."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from functions.controller.autoscaling.allocation import Allocation, Sleepers, next_allocation

numbers = st.integers(0, 6)


@st.composite
def allocations(draw: st.DrawFn) -> Allocation:
    count = draw(numbers)
    return Allocation(
        count, draw(st.frozensets(st.integers(0, max(0, count - 1)), max_size=count)) if count else frozenset()
    )


def test_worked_example_of_the_allocation() -> None:
    now = Allocation(4, frozenset({3}))
    grown = next_allocation(now, 4, 1, {3})
    assert grown == Allocation(5, frozenset({4}))
    assert next_allocation(grown, 3, 1, {4}) == now


def test_loaded_warm_replicas_are_promoted_first() -> None:
    now = Allocation(5, frozenset({2, 3, 4}))
    assert next_allocation(now, 3, 3, {4}).standby >= {2, 3}
    assert 4 not in next_allocation(now, 3, 3, {4}).standby


def test_new_replicas_serve_without_warm_ones() -> None:
    assert next_allocation(Allocation(2), 4, 0) == Allocation(4)


def test_new_replicas_serve_until_enough_do() -> None:
    assert next_allocation(Allocation(2, frozenset({1})), 4, 1, {1}) == Allocation(5, frozenset({4}))


def test_one_replica_is_removed_at_a_time() -> None:
    assert next_allocation(Allocation(4), 1, 0) == Allocation(3)


def test_surplus_serving_replica_becomes_the_warm_one() -> None:
    assert next_allocation(Allocation(3), 2, 1) == Allocation(3, frozenset({2}))


def test_unloaded_warm_replica_does_not_replace_a_serving_one() -> None:
    now = Allocation(3, frozenset({0}))
    assert next_allocation(now, 2, 0) == now
    assert next_allocation(now, 2, 0, {0}) == Allocation(2)


def test_sleeping_replicas_are_promoted_after_awake_ones_within_the_wake_limit() -> None:
    now = Allocation(5, frozenset({1, 2, 3, 4}))
    awake_too = next_allocation(now, 2, 3, {1, 2}, Sleepers(frozenset({1}), wake=1))
    assert awake_too.standby == {1, 3, 4}, "2 is loaded and awake"
    assert next_allocation(now, 2, 3, {1, 2}, Sleepers(frozenset({1, 2}), wake=1)).standby == {2, 3, 4}, (
        "sooner than one loads"
    )
    assert next_allocation(now, 2, 3, {1, 2}, Sleepers(frozenset({1, 2}))).standby == {1, 2, 4}, (
        "3 loads, and has a slot"
    )


def test_sleeping_replica_replaces_a_serving_one_only_if_it_may_wake() -> None:
    now = Allocation(2, frozenset({0}))
    assert next_allocation(now, 1, 0, {0}, Sleepers(frozenset({0}))) == now
    assert next_allocation(now, 1, 0, {0}, Sleepers(frozenset({0}), wake=1)) == Allocation(1)


def test_numbers_beyond_the_count_are_refused() -> None:
    with pytest.raises(ValueError, match="not all below 2"):
        Allocation(2, frozenset({2}))


@given(allocations(), numbers, numbers)
def test_every_transition_converges_without_fewer_serving_than_wanted(now: Allocation, serving: int, warm: int) -> None:
    for _ in range(40):
        then = next_allocation(now, serving, warm, set(range(now.count)))
        assert then.serving >= min(serving, now.serving), "nothing that should serve is taken away"
        assert then.serving >= now.serving - 1 and then.count >= now.count - 1, "one at a time"
        if then == now:
            break
        now = then
    assert (now.serving, len(now.standby)) == (serving, warm)


@pytest.mark.parametrize("sleepers", [Sleepers(), Sleepers(frozenset({0}), wake=1)])
def test_warm_replica_is_promoted_from_zero_without_a_start(sleepers: Sleepers) -> None:
    at_zero = Allocation(1, frozenset({0}))
    assert next_allocation(at_zero, 1, 0, {0}, sleepers) == Allocation(1)
    assert next_allocation(Allocation(1), 0, 1) == at_zero, "and back: it stays warm where the policy keeps one"


def test_replica_is_started_from_zero_without_a_warm_one() -> None:
    assert next_allocation(Allocation(0), 1, 0) == Allocation(1)
    assert next_allocation(Allocation(3), 0, 0) == Allocation(2), "one after the other on the way to none"
