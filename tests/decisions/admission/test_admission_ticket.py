"""Cost of a request to its tenant, in the tokens that fair queueing counts."""

import pytest

from functions.decisions.admission.ticket import cost_tokens, uncounted_cost_tokens


def test_final_cost_of_a_request() -> None:
    assert cost_tokens(1000, 50) == 1100, "when it goes"
    assert uncounted_cost_tokens(1000, 300, at_work=True, begun=True) == 1600
    assert uncounted_cost_tokens(1000, 0, at_work=True, begun=False) is None
    assert uncounted_cost_tokens(1000, 0, at_work=False, begun=False) == 0


@pytest.mark.parametrize("at_work", [True, False])
def test_started_stream_is_charged_as_delivered_whichever_side_ended_it(at_work: bool) -> None:
    assert uncounted_cost_tokens(1000, 1, at_work=at_work, begun=True) == 1002
