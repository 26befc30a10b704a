"""Time to the next pass after each kind of result."""

import pytest

from functions.controller.kubernetes.outcome import PassResult, ReconcileIntervals, combine_results, next_pass_delay_s
from functions.controller.kubernetes.run.publishing import publication_result
from functions.controller.snapshot.publish import PublishOutcome
from functions.decisions.health.backoff import BackoffPolicy

PACE = ReconcileIntervals(resync_s=300, poll_s=5, contested_s=60, backoff=BackoffPolicy(base_s=1.0, cap_s=120.0))


@pytest.mark.parametrize(
    ("result", "wait_s"),
    [
        (PassResult("done"), 300),
        (PassResult("refused"), 300),
        (PassResult("waiting"), 5),
        (PassResult("contested"), 60),
        (PassResult("stalled"), 300),
        (PassResult("passing"), 1),
        (PassResult("passing", after_s=30), 30),
    ],
)
def test_each_result_has_its_interval(result: PassResult, wait_s: float) -> None:
    assert next_pass_delay_s(result, 1, PACE, 0.0) == wait_s


def test_failure_interval_doubles_with_jitter() -> None:
    assert [next_pass_delay_s(PassResult("passing"), n, PACE, 0.0) for n in (1, 2, 3, 9, 99)] == [1, 2, 4, 120, 120]
    assert next_pass_delay_s(PassResult("passing"), 3, PACE, 1.0) == 2


def test_pending_work_is_checked_at_growing_intervals() -> None:
    assert [next_pass_delay_s(PassResult("waiting"), n, PACE, 0.5) for n in (1, 2, 3, 4, 99)] == [5, 10, 20, 30, 30]


def test_retryable_problems_are_retried_beside_stalled_ones() -> None:
    both = combine_results(
        [PassResult("stalled", "bad file"), PassResult("passing", "registry away", 7), PassResult("done", "fine")]
    )
    assert both == PassResult("passing", "bad file; registry away", 7)


LEFT = "the registry's key ci is left out: there is no tenant globex"


@pytest.mark.parametrize(
    ("outcome", "kind", "words"),
    [
        (PublishOutcome("published", "epoch 3", left_out=(LEFT,), complete=True), "done", LEFT),
        (PublishOutcome("unchanged", "", problems=("models/x: nothing there",)), "waiting", "models/x"),
        (PublishOutcome("unchanged", "", refused=("models/x: versions do not change",)), "refused", "models/x"),
    ],
)
def test_api_problems_are_reported_and_block_nothing(outcome: PublishOutcome, kind: str, words: str) -> None:
    result = publication_result(outcome)
    assert result.kind == kind
    assert words in result.message
    assert words in combine_results([PassResult("done"), result]).message


def test_done_result_keeps_its_message() -> None:
    assert combine_results([PassResult("done", "published epoch 3"), PassResult("done")]) == PassResult(
        "done", "published epoch 3"
    )
