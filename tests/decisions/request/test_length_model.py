"""length_model: token counts of engines, learned per tenant and bounded."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from functions.decisions.request.length_model import (
    LEAST_OUTPUT_TOKENS,
    MOST_OUTPUT_TOKENS,
    START_BYTES_PER_TOKEN,
    UNKNOWN_OUTPUT_TOKENS,
    AnswerLengths,
    LengthModel,
)

ABSURD = st.integers(-(2**70), 2**70)


def taught(lengths: list[int]) -> AnswerLengths:
    learnt = AnswerLengths()
    for tokens in lengths:
        learnt.learn(tokens, cut=False)
    return learnt


def test_bytes_per_token_are_learned_per_tenant_and_vocabulary() -> None:
    model = LengthModel()
    assert model.prompt_tokens("base", "acme", 1000) == math.ceil(1.1 * 1000 / 4)
    model.learn_prompt("base", "acme", 3000, 1500)
    assert model.bytes_per_token("base", "acme") == pytest.approx(2.7755, abs=1e-4)
    assert model.prompt_tokens("base", "acme", 1000) == 397
    assert model.prompt_tokens("base", "globex", 1000) == 275, "another tenant's prompts say nothing"
    assert model.prompt_tokens("other", "acme", 1000) == 275, "nor does another vocabulary"


@given(st.floats(1.2, 12.0), st.integers(0, 2**32))
def test_ratio_is_learned_from_long_prompts_although_most_are_short(bytes_per_token: float, seed: int) -> None:
    rng, model = random.Random(seed), LengthModel()
    for _ in range(200):
        tokens = rng.choice([20, 30, 40, 2000])
        model.learn_prompt("base", "acme", round(tokens * bytes_per_token), tokens)
    assert model.bytes_per_token("base", "acme") == pytest.approx(bytes_per_token, rel=0.05)


@given(st.lists(st.tuples(ABSURD, ABSURD), max_size=30))
def test_absurd_counts_keep_prompt_tokens_in_bounds(
    samples: list[tuple[int, int]],
) -> None:
    model = LengthModel()
    for prompt_bytes, prompt_tokens in samples:
        model.learn_prompt("base", "acme", prompt_bytes, prompt_tokens)
    assert 1000 / 16 <= model.prompt_tokens("base", "acme", 1000) <= 1101


def test_the_percentile_of_answers() -> None:
    learnt = taught([100] * 95 + [2000] * 5)
    assert learnt.expected_tokens == 104
    learnt.learn(2000, cut=False)
    assert learnt.expected_tokens == 2044


def test_few_answers_do_not_lower_the_expectation() -> None:
    assert taught([100] * 13).expected_tokens == UNKNOWN_OUTPUT_TOKENS
    assert taught([100] * 14).expected_tokens == 104
    assert taught([2000]).expected_tokens == 2044, "and the first may say that they are long"


@given(st.lists(st.integers(1, 8000), min_size=14, max_size=511))
def test_a_percentile_is_never_too_small_and_at_most_five_percent_too_large(lengths: list[int]) -> None:
    true = sorted(lengths)[math.ceil(0.95 * len(lengths) - 1e-9) - 1]
    bounded = min(max(true, LEAST_OUTPUT_TOKENS), MOST_OUTPUT_TOKENS)
    found = taught(lengths).expected_tokens
    assert bounded - 1 <= found <= bounded * 1.05 + 1


def test_old_answers_fade() -> None:
    learnt = taught([3000] * 2000)
    assert learnt.expected_tokens > 2900
    for _ in range(3000):
        learnt.learn(100, cut=False)
    assert learnt.expected_tokens == 104


@given(st.lists(ABSURD, max_size=1200))
def test_expectation_stays_in_bounds_for_any_counts(lengths: list[int]) -> None:
    found = taught(lengths).expected_tokens
    assert found == UNKNOWN_OUTPUT_TOKENS or LEAST_OUTPUT_TOKENS <= found <= MOST_OUTPUT_TOKENS


def test_truncated_answers_do_not_lower_the_expectation() -> None:
    learnt = taught([500] * 100)
    before = learnt.expected_tokens
    for _ in range(3000):
        learnt.learn(16, cut=True)
    assert learnt.expected_tokens == before
    for _ in range(400):
        learnt.learn(4000, cut=True)
    assert learnt.expected_tokens > 3900, "longer than expected, though cut: at least so long it would have been"


def test_least_recently_updated_entry_is_forgotten() -> None:
    model = LengthModel(max_entries=3)
    for tenant in ("a", "b", "c", "a", "d"):
        model.learn_prompt("base", tenant, 8000, 8000)
        model.learn_answer("base", tenant, 100, cut=False)
    assert len(model) == 6
    assert model.bytes_per_token("base", "b") == START_BYTES_PER_TOKEN
    assert model.bytes_per_token("base", "a") < START_BYTES_PER_TOKEN
