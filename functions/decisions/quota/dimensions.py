"""Dimensions of a tenant's limits, their units, and what a request lacks of one."""

from typing import Literal, NamedTuple

from functions.decisions.quota.token_bucket import US_PER_S

Dimension = Literal[
    "requests_per_minute",
    "input_tokens_per_minute",
    "output_tokens_per_minute",
    "kv_token_seconds_per_minute",
    "gpu_seconds_per_hour",
    "concurrent_requests",
]
REQUESTS, INPUT, OUTPUT, KV, GPU, CONCURRENCY = range(6)  # the last has no bucket
DIMENSIONS: tuple[Dimension, ...] = (
    "requests_per_minute",
    "input_tokens_per_minute",
    "output_tokens_per_minute",
    "kv_token_seconds_per_minute",
    "gpu_seconds_per_hour",
)
PERIODS_S = (60, 60, 60, 60, 3600)
GRAINS = tuple(period_s * US_PER_S for period_s in PERIODS_S)  # of one request, token or second
NO_COST = (0, 0, 0, 0, 0)
FREES_UP_S = 1.0  # when one of a tenant's own requests ends is its own doing: a second is as good a guess as any

Costs = tuple[int, int, int, int, int]  # grains, by dimension


class OverLimit(NamedTuple):
    """One more would be too many."""

    dimension: Dimension
    limit: int
    retry_after_s: float
