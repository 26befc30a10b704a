"""The simulated engine's log probabilities: a distribution, with low confidence if the prompt requests it."""

from math import exp

import pytest

from functions.decisions.routing.cascade import token_entropy
from functions.engines.sim.bodies import chat_logprobs, completion_logprobs


@pytest.mark.parametrize("piece", [" word", " ?", "??"])
@pytest.mark.parametrize("top", [1, 5, 20])
def test_ranks_fall_and_are_no_more_than_the_whole_mass(piece: str, top: int) -> None:
    entry = chat_logprobs([7], [piece], top=top)["content"][0]
    ranked = [one["logprob"] for one in entry["top_logprobs"]]
    assert len(ranked) == top and ranked == sorted(ranked, reverse=True) and entry["logprob"] == ranked[0]
    assert sum(map(exp, ranked)) <= 1.0


def test_low_confidence_only_for_questions() -> None:
    for token in range(50):
        sure, unsure = chat_logprobs([token, token], [" a", " ?"], top=5)["content"]
        assert token_entropy(one["logprob"] for one in sure["top_logprobs"]) < 0.4
        assert token_entropy(one["logprob"] for one in unsure["top_logprobs"]) > 1.2


def test_both_shapes_say_the_same() -> None:
    older = completion_logprobs([3, 4], ["a", "?"], top=5)
    newer = chat_logprobs([3, 4], ["a", "?"], top=5)["content"]
    assert older["token_logprobs"] == [entry["logprob"] for entry in newer]
    assert [list(top.values()) for top in older["top_logprobs"]] == [
        [one["logprob"] for one in entry["top_logprobs"]] for entry in newer
    ]
