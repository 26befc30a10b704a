"""Length caps of a tenant's tier: context and output of one request.

A tier's context cap acts as a smaller context window and follows the engine's own rules: a prompt that fills it is
refused, and so is a requested output beyond it; both together are not refused, but the output is cut to what is left,

    granted = min(requested, max_output, max_context - prompt)

A request beyond the output cap is refused rather than cut: the caller would take the cut answer for the whole one.
Where no length was requested, the engine's default stands in for it, and the cap quietly bounds it.
Worked example (test_worked_example_from_the_prologue): max_output 512, max_context 4096, a prompt of 4000 tokens. 600
requested are refused; 300 requested become 96; without a length (the engine would go to its window's end) it is 96 too.

All caps are per choice, as max_tokens is: `n` choices are `n` answers of at most that length.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from functions.api.snapshot import KeyEntry, QuotaEntry, QuotaLimits

Subject = Literal["prompt", "output", "min_output"]


class LengthRequest(NamedTuple):
    """What a request says about its length; None where it says nothing."""

    output_tokens: int | None
    min_output_tokens: int | None
    engine_default_tokens: int  # how far the engine would go where none is requested
    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class OverCap:
    dimension: Literal["max_context_tokens", "max_output_tokens"]
    subject: Subject  # what of the request is too long
    found_tokens: int
    cap_tokens: int


def grant(request: LengthRequest, caps: QuotaLimits) -> int | OverCap | None:
    """The output tokens that the engine must be held to, None where the request stays within the caps by itself."""
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
    """The tier with the caps of one of its tenants' keys, where those are tighter; only its caps are meant."""
    limits = key.limits if key is not None else None
    if limits is None or (limits.max_context_tokens is None and limits.max_output_tokens is None):
        return quota
    tier = quota if quota is not None else QuotaEntry("none")
    caps = QuotaLimits(
        max_context_tokens=_least(tier.limits.max_context_tokens, limits.max_context_tokens),
        max_output_tokens=_least(tier.limits.max_output_tokens, limits.max_output_tokens),
    )
    return QuotaEntry(tier.name, tier.weight, caps)


def _least(first: int | None, second: int | None) -> int | None:
    if first is None or second is None:
        return second if first is None else first
    return min(first, second)


def _over(tokens: int | None, subject: Subject, caps: QuotaLimits) -> OverCap | None:
    if tokens is None:
        return None
    if caps.max_output_tokens is not None and tokens > caps.max_output_tokens:
        return OverCap("max_output_tokens", subject, tokens, caps.max_output_tokens)
    if caps.max_context_tokens is not None and tokens > caps.max_context_tokens:
        return OverCap("max_context_tokens", subject, tokens, caps.max_context_tokens)
    return None
