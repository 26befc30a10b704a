"""Length caps of a tenant's tier: context and output of one request.

A tier's context cap acts as a smaller context window and follows the engine's own rules. A prompt that fills it is
rejected, and so is a requested output beyond it. If only their sum is too large, the output is cut to the remainder,

    granted = min(requested, max_output, max_context - prompt)

A request beyond the output cap is rejected rather than cut: the caller would mistake the cut answer for a whole one.
If no length was requested, the engine's default stands in for it, and the cap limits it without an error.
Worked example (test_worked_example_from_the_prologue): max_output 512, max_context 4096, a prompt of 4000 tokens. 600
requested are rejected; 300 requested become 96; without a length (the engine would use its whole window) it is also 96.

All caps are per choice, as max_tokens is: `n` choices are `n` answers of at most that length.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from functions.api.snapshot import KeyEntry, QuotaEntry, QuotaLimitsPart

Subject = Literal["prompt", "output", "min_output"]


class LengthRequest(NamedTuple):
    """Length fields of a request. None means that the field is not set."""

    output_tokens: int | None
    min_output_tokens: int | None
    engine_default_tokens: int  # the engine's length if none is requested
    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class OverCap:
    dimension: Literal["max_context_tokens", "max_output_tokens"]
    subject: Subject  # the part of the request that is too long
    found_tokens: int
    cap_tokens: int


def grant(request: LengthRequest, caps: QuotaLimitsPart) -> int | OverCap | None:
    """Return the output limit to set at the engine, None if the request is within the caps, or the exceeded cap: by the
    prompt, or by an output length that the request sets."""
    output_cap, context_cap = caps.max_output_tokens, caps.max_context_tokens
    over = _over(request.output_tokens, "output", caps) or _over(request.min_output_tokens, "min_output", caps)
    if over is not None:
        return over
    if context_cap is not None and request.prompt_tokens >= context_cap:
        return OverCap("max_context_tokens", "prompt", request.prompt_tokens, context_cap)
    requested = granted = request.output_tokens if request.output_tokens is not None else request.engine_default_tokens
    if output_cap is not None and output_cap < granted:
        granted = output_cap
    if context_cap is not None and context_cap - request.prompt_tokens < granted:
        granted = context_cap - request.prompt_tokens
    return granted if granted < requested else None


def within_key(quota: QuotaEntry | None, key: KeyEntry | None) -> QuotaEntry | None:
    """Return the tier with its caps tightened by those of the key, or `quota` unchanged if the key has none. Only the
    caps of a new result are valid."""
    limits = key.limits if key is not None else None
    if limits is None or (limits.max_context_tokens is None and limits.max_output_tokens is None):
        return quota
    tier = quota if quota is not None else QuotaEntry("none")
    caps = QuotaLimitsPart(
        max_context_tokens=_least(tier.limits.max_context_tokens, limits.max_context_tokens),
        max_output_tokens=_least(tier.limits.max_output_tokens, limits.max_output_tokens),
    )
    return QuotaEntry(tier.name, tier.weight, caps)


def _least(first: int | None, second: int | None) -> int | None:
    if first is None or second is None:
        return second if first is None else first
    return min(first, second)


def _over(tokens: int | None, subject: Subject, caps: QuotaLimitsPart) -> OverCap | None:
    if tokens is None:
        return None
    if caps.max_output_tokens is not None and tokens > caps.max_output_tokens:
        return OverCap("max_output_tokens", subject, tokens, caps.max_output_tokens)
    if caps.max_context_tokens is not None and tokens > caps.max_context_tokens:
        return OverCap("max_context_tokens", subject, tokens, caps.max_context_tokens)
    return None
