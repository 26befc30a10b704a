"""Dimensions of a tenant's limits, their units, and the cost of one request in KV-token-seconds and GPU seconds.

    kv_token_seconds = prompt x (prefill_s + decode_s)  +  output x decode_s / 2
    gpu_seconds      = accelerators x (uncached x prefill_ms_per_token / 1000  +  decode_s / batch)

A prompt's blocks are held from the prefill to the end, including those shared with other requests. Output grows by a
token a step, so on average half of it is held during decode (vLLM allocates a block when a token needs it, and frees
all at the end). One decode step computes a token for every sequence of the batch, so each sequence's part of a step is
step / batch, and of all its steps decode_s / batch. `batch` is the mean of the running requests that the replica's
heartbeats reported when the request was sent and when it ended.

All accelerators of a replica work on the same step: four in a tensor-parallel group are four paid seconds in one. So
the parts of all requests add up to the replica's busy time: while n decode, n parts of 1 / n pass in each second, and
the prefills follow each other. Idle time is charged to no request.
Worked example (test_worked_example_from_the_prologue): 1,000 prompt tokens, 600 cached, 0.5 ms each; 200 tokens of
output in 4 s, 8 streams at a time. 400 x 0.0005 + 4 / 8 = 0.7 s, of four accelerators 2.8. It waited 0.2 s for its
prefill: it held 1,000 x 4.2 + 200 x 4 / 2 = 4,600 KV-token-seconds.
"""

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
REQUESTS, INPUT, OUTPUT, KV, GPU, CONCURRENCY = range(6)  # CONCURRENCY has no bucket
DIMENSIONS: tuple[Dimension, ...] = (
    "requests_per_minute",
    "input_tokens_per_minute",
    "output_tokens_per_minute",
    "kv_token_seconds_per_minute",
    "gpu_seconds_per_hour",
)
PERIODS_S = (60, 60, 60, 60, 3600)
UNITS_PER_MICRO = PERIODS_S  # quota units in a millionth of a token, the smallest amount in a lease request
UNITS = tuple(period_s * US_PER_S for period_s in PERIODS_S)  # units per request, token or second
NO_COST = (0, 0, 0, 0, 0)
FREES_UP_S = 1.0  # guessed time until one of the tenant's own requests ends

Costs = tuple[int, int, int, int, int]  # units, by dimension


class OverLimit(NamedTuple):
    """A limit that a request would exceed, and when to retry."""

    dimension: Dimension
    limit: int
    retry_after_s: float


def kv_token_seconds(prompt_tokens: int, output_tokens: int, prefill_s: float, decode_s: float) -> float:
    """Return the tokens held in KV cache times the seconds that they were held; output tokens arrive evenly during
    `decode_s`."""
    prefill_s, decode_s = max(0.0, prefill_s), max(0.0, decode_s)
    return prompt_tokens * (prefill_s + decode_s) + output_tokens * decode_s / 2.0


def gpu_seconds(
    uncached_tokens: int, prefill_ms_per_token: float, decode_s: float, batch: float, accelerators: int = 1
) -> float:
    """Return the request's part of its replica's busy seconds, times `accelerators`. `batch` includes this request."""
    busy_s = max(0, uncached_tokens) * prefill_ms_per_token / 1000.0 + max(0.0, decode_s) / max(1.0, batch)
    return accelerators * busy_s
