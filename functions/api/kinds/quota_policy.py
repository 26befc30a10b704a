"""`QuotaPolicy`: limits of a tier of tenants, and its weight when tenants compete.

Only declared limits apply. Each limit applies to every tenant of the tier separately.
"""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from functions.api.kinds.base import Finding, Metadata, Name, ShoalObject, Strict
from functions.api.kinds.quantities import Positive


class QuotaLimits(Strict):
    """Limits of each tenant of the tier; only declared limits apply."""

    requests_per_minute: Positive | None = None
    """Requests that may begin in a minute."""
    input_tokens_per_minute: Positive | None = None
    """Prompt tokens in a minute."""
    output_tokens_per_minute: Positive | None = None
    """Generated tokens in a minute."""
    concurrent_requests: Positive | None = None
    """Requests in progress at the same time."""
    kv_token_seconds_per_minute: Positive | None = None
    """Tokens in the KV cache, multiplied by the seconds that they stay there: the true cost of long contexts."""
    gpu_seconds_per_hour: Positive | None = None
    """Accelerator seconds in an hour; 3600 is one accelerator all the time."""
    max_context_tokens: Positive | None = None
    """Prompt and output of one request together; the pool's own context window applies as well."""
    max_output_tokens: Positive | None = None
    """Output tokens of one request."""
    token_burst_seconds: Positive = 10
    """Seconds' worth of a minute's tokens that may arrive in a burst; at least one request of the largest length is
    allowed. A larger value suits bursty clients, but a minute may exceed its limit by that much."""


class QuotaPolicySpec(Strict):
    weight: Annotated[float, Field(gt=0, le=1000)] = 1.0
    """Share of a full pool, relative to the weights of the other tenants that use it."""
    limits: QuotaLimits = QuotaLimits()
    cached_token_weight: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Share of a cached prompt token that counts as input: 0 not at all, 1 like any other."""


class QuotaPolicyMetadata(Metadata):
    name: Name  # the tier that tenants refer to


class QuotaPolicy(ShoalObject):
    """Limits of a tier of tenants, and its weight when tenants compete."""

    kind: Literal["QuotaPolicy"]
    metadata: QuotaPolicyMetadata
    spec: QuotaPolicySpec

    def findings(self) -> Iterator[Finding]:
        limits = self.spec.limits
        context, output = limits.max_context_tokens, limits.max_output_tokens
        if context is not None and output is not None and output > context:
            message = f"found {output}; allowed: at most maxContextTokens, {context}: output is part of the context"
            yield Finding(("spec", "limits", "maxOutputTokens"), message)
