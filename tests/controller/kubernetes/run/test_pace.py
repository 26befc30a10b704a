"""When to look again after each kind of end."""

import pytest

from functions.controller.kubernetes.run.pace import Pace, Result, next_look_s, together
from functions.decisions.health.backoff import BackoffPolicy

PACE = Pace(resync_s=300, poll_s=5, contested_s=60, backoff=BackoffPolicy(base_s=1.0, cap_s=120.0))


@pytest.mark.parametrize(
    ("result", "wait_s"),
    [
        (Result("done"), 300),
        (Result("refused"), 300),
        (Result("waiting"), 5),
        (Result("contested"), 60),
        (Result("stalled"), 300),
        (Result("passing"), 1),
        (Result("passing", after_s=30), 30),
    ],
)
def test_each_end_has_its_pace(result: Result, wait_s: float) -> None:
    assert next_look_s(result, 1, PACE, 0.0) == wait_s


def test_failures_double_and_spread() -> None:
    assert [next_look_s(Result("passing"), n, PACE, 0.0) for n in (1, 2, 3, 9, 99)] == [1, 2, 4, 120, 120]
    assert next_look_s(Result("passing"), 3, PACE, 1.0) == 2


def test_what_is_under_way_is_looked_at_less_and_less_often() -> None:
    assert [next_look_s(Result("waiting"), n, PACE, 0.5) for n in (1, 2, 3, 4, 99)] == [5, 10, 20, 30, 30]


def test_what_may_pass_is_tried_again_beside_what_is_stalled() -> None:
    both = together([Result("stalled", "bad file"), Result("passing", "registry away", 7), Result("done", "fine")])
    assert both == Result("passing", "bad file; registry away", 7)


def test_all_done_keeps_its_words() -> None:
    assert together([Result("done", "published epoch 3"), Result("done")]) == Result("done", "published epoch 3")
