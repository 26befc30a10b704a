"""What a request takes out of a pool, in the tokens that fairness counts."""

import pytest

from functions.decisions.admission.ticket import cost_tokens, uncounted_cost_tokens


def test_what_a_request_costs_its_tenant_in_the_end() -> None:
    assert cost_tokens(1000, 50) == 1100, "when it goes"
    assert uncounted_cost_tokens(1000, 300, at_work=True, begun=True) == 1600
    assert uncounted_cost_tokens(1000, 0, at_work=True, begun=False) is None
    assert uncounted_cost_tokens(1000, 0, at_work=False, begun=False) == 0


@pytest.mark.parametrize("at_work", [True, False])
def test_a_stream_that_had_begun_is_charged_as_delivered_whoever_ended_it(at_work: bool) -> None:
    assert uncounted_cost_tokens(1000, 1, at_work=at_work, begun=True) == 1002
