"""The time allowed to a warm replica to fall asleep or load, by its heartbeats."""

from functions.controller.autoscaling.slots_in_use import (
    FALLS_ASLEEP_S,
    LOADS_S,
    SURE_AFTER_S,
    Lasting,
    Since,
    lasting_states,
    update_since,
)

ONE = frozenset({1})


def test_worked_example_of_a_silent_replica() -> None:
    silent = update_since({}, {"a": {1: "unheard"}}, 0.0)
    assert update_since(silent, {"a": {1: "unheard"}}, 119.0) == silent
    assert lasting_states(silent, "a", 119.0) == Lasting()
    assert lasting_states(silent, "a", 120.0) == Lasting(stuck=ONE)
    assert lasting_states(silent, "b", 120.0) == Lasting(), "another pool's"


def test_loaded_replica_has_limited_time_to_fall_asleep() -> None:
    loaded = update_since({}, {"a": {1: "loaded"}}, 100.0)
    assert lasting_states(loaded, "a", 99.0 + FALLS_ASLEEP_S) == Lasting(settling=ONE)
    assert lasting_states(loaded, "a", 100.0 + FALLS_ASLEEP_S) == Lasting()
    assert lasting_states(loaded, "a", 1e9).stuck == frozenset(), "it is awake for good"
    assert update_since(loaded, {"a": {}}, 120.0) == {}, "the next time it has the whole time again"


def test_starting_replica_may_sleep_and_one_that_never_loads_is_stuck() -> None:
    loading = update_since({}, {"a": {1: "loading"}}, 0.0)
    assert lasting_states(loading, "a", 0.0) == Lasting(unsure=ONE)
    assert lasting_states(loading, "a", SURE_AFTER_S) == Lasting()
    assert lasting_states(loading, "a", LOADS_S) == Lasting(stuck=ONE)


def test_changed_state_restarts_the_time_limit() -> None:
    now: Since = {}
    for at_s, state in enumerate(("loading", "unheard", "loading")):
        now = update_since(now, {"a": {1: state}}, float(at_s))  # type: ignore[dict-item]
    assert now == {("a", 1): ("loading", 2.0)}
