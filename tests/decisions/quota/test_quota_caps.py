"""Length caps: a granted length never exceeds them, and a refusal names the cap that was exceeded."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from functions.api.snapshot import QuotaLimitsPart
from functions.decisions.quota.caps import LengthRequest, OverCap, grant

CAPS = QuotaLimitsPart(max_output_tokens=512, max_context_tokens=4096)


def length(
    output: int | None = None, prompt: int = 0, least: int | None = None, default: int = 131_072
) -> LengthRequest:
    return LengthRequest(
        output_tokens=output, min_output_tokens=least, engine_default_tokens=default, prompt_tokens=prompt
    )


def test_worked_example_from_the_prologue() -> None:
    assert grant(length(600, prompt=4000), CAPS) == OverCap("max_output_tokens", "output", 600, 512)
    assert grant(length(300, prompt=4000), CAPS) == 96
    assert grant(length(None, prompt=4000), CAPS) == 96


@pytest.mark.parametrize(
    ("asked", "caps", "granted"),
    [
        (length(), QuotaLimitsPart(), None),
        (length(10), CAPS, None),
        (length(512), CAPS, None),
        (length(0), CAPS, None),  # a completion that only scores its prompt
        (length(), CAPS, 512),
        (length(default=16), CAPS, None),  # the engine stops earlier by itself
        (length(default=16), QuotaLimitsPart(max_output_tokens=4), 4),
        (length(), QuotaLimitsPart(max_context_tokens=100), 100),
        (length(prompt=99), QuotaLimitsPart(max_context_tokens=100), 1),
        (length(513), CAPS, OverCap("max_output_tokens", "output", 513, 512)),
        (length(least=513), CAPS, OverCap("max_output_tokens", "min_output", 513, 512)),
        (length(101), QuotaLimitsPart(max_context_tokens=100), OverCap("max_context_tokens", "output", 101, 100)),
        (
            length(prompt=100),
            QuotaLimitsPart(max_context_tokens=100),
            OverCap("max_context_tokens", "prompt", 100, 100),
        ),
        (length(1), QuotaLimitsPart(max_output_tokens=0), OverCap("max_output_tokens", "output", 1, 0)),
    ],
)
def test_granted_length(asked: LengthRequest, caps: QuotaLimitsPart, granted: int | OverCap | None) -> None:
    assert grant(asked, caps) == granted


tokens = st.integers(0, 300)
cap = st.none() | st.integers(1, 300)


@given(st.none() | tokens, tokens, st.none() | tokens, st.integers(1, 300), cap, cap)
def test_granted_length_exceeds_neither_caps_nor_the_requested_length(
    output: int | None, prompt: int, least: int | None, default: int, output_cap: int | None, context_cap: int | None
) -> None:
    asked = length(output, prompt, least, default)
    granted = grant(asked, QuotaLimitsPart(max_output_tokens=output_cap, max_context_tokens=context_cap))
    if isinstance(granted, OverCap):
        assert granted.found_tokens >= granted.cap_tokens
        return
    wished = output if output is not None else default
    engine_gets = wished if granted is None else granted
    assert 0 <= engine_gets <= wished
    assert output_cap is None or engine_gets <= output_cap
    assert context_cap is None or prompt + engine_gets <= context_cap
