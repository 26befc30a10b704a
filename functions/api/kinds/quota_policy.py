"""`QuotaPolicy`: what a tier of tenants may use, and how much it weighs where tenants compete.

A limit that is not written does not limit. Each limit counts for every tenant of the tier on its own.
"""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from functions.api.kinds.base import Finding, Metadata, Name, ShoalObject, Strict
from functions.api.kinds.quantities import Positive


class QuotaLimits(Strict):
    """Of each tenant of the tier; a limit that is not written does not limit."""

    requests_per_minute: Positive | None = None
    """Requests that may begin in a minute."""
    input_tokens_per_minute: Positive | None = None
    """Prompt tokens in a minute."""
    output_tokens_per_minute: Positive | None = None
    """Generated tokens in a minute."""
    concurrent_requests: Positive | None = None
    """Requests in progress at one time."""
    kv_token_seconds_per_minute: Positive | None = None
    """Tokens held in KV cache, times the seconds for which they are: what long contexts really cost."""
    gpu_seconds_per_hour: Positive | None = None
    """Seconds of accelerators in an hour; 3600 is one accelerator all the time."""
    max_context_tokens: Positive | None = None
    """Prompt and output of one request together; the pool's own context window applies as well."""
    max_output_tokens: Positive | None = None
    """Output of one request."""
    token_burst_seconds: Positive = 10
    """Seconds' worth of a minute's tokens that may come at once, at least one request of the largest length. More is
    kinder to those who send in bursts; a minute may then see so much more than its limit."""


class QuotaPolicySpec(Strict):
    weight: Annotated[float, Field(gt=0, le=1000)] = 1.0
    """Share of a pool that is full, relative to the weights of the other tenants that want it."""
    limits: QuotaLimits = QuotaLimits()
    cached_token_weight: Annotated[float, Field(ge=0, le=1)] = 0.0
    """How much of a prompt token counts as input that the engine had in its cache: 0 not at all, 1 like any other."""


class QuotaPolicyMetadata(Metadata):
    name: Name  # tenants name it as their tier


class QuotaPolicy(ShoalObject):
    """What a tier of tenants may use, and how much it weighs where tenants compete."""

    kind: Literal["QuotaPolicy"]
    metadata: QuotaPolicyMetadata
    spec: QuotaPolicySpec

    def findings(self) -> Iterator[Finding]:
        limits = self.spec.limits
        context, output = limits.max_context_tokens, limits.max_output_tokens
        if context is not None and output is not None and output > context:
            message = f"found {output}; allowed: at most maxContextTokens, {context}: output is part of the context"
            yield Finding(("spec", "limits", "maxOutputTokens"), message)
