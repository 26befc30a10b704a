"""Decide whether a repeated failure is logged again."""

from functions.artifacts.errors import StoreUnavailable
from functions.telemetry.repeats import Repeats, kind_of


def test_a_failure_that_lasts_is_new_once_and_again_after_it_was_away() -> None:
    repeats = Repeats(after_s=60.0)
    assert [repeats.is_new("a", now_s) for now_s in (0.0, 30.0, 90.0, 150.1)] == [True, False, False, True]


def test_kinds_that_take_turns_are_each_new_once() -> None:
    repeats = Repeats(after_s=60.0)
    assert [repeats.is_new(kind, 1.0) for kind in "abab"] == [True, True, False, False]


def test_memory_for_varying_errors_is_bounded() -> None:
    repeats = Repeats()
    assert all(repeats.is_new(str(number), 1.0) for number in range(10_000))
    assert len(repeats._last_s) <= 32


def test_error_without_kind_is_identified_by_its_message() -> None:
    error = StoreUnavailable("gone")
    assert kind_of(error) == kind_of(StoreUnavailable("gone")) == "gone"
    error.kind = "Timeout"
    assert kind_of(error) == "Timeout"
