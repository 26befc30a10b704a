"""Responses about limits: the 429 that names a limit and a remedy, the 400 for impossible requests, and the headers
`x-ratelimit-*`.

The headers describe the state at admission, for streams too. If several token limits apply (input, output, the
key's), the headers show the one that is nearest to exhaustion. As with OpenAI, `remaining` is what may be used
immediately, and `reset` the time until all of that is available again.
"""

from collections.abc import Iterable
from math import ceil

from functions.decisions.quota.account import QuotaAccount
from functions.decisions.quota.dimensions import INPUT, OUTPUT, REQUESTS, OverLimit
from functions.decisions.quota.lease import shared_burst
from functions.decisions.quota.token_bucket import US_PER_S, TokenBucket
from functions.gateway.errors import ErrorAnswer, OverQuota
from functions.gateway.http.sink import MoreHeaders

_TYPES = {"concurrent_requests": "concurrency", "requests_per_minute": "requests"}
_WORDS = {
    "requests_per_minute": "requests a minute",
    "input_tokens_per_minute": "input tokens a minute",
    "output_tokens_per_minute": "output tokens a minute",
    "kv_token_seconds_per_minute": "KV-token-seconds a minute",
    "gpu_seconds_per_hour": "GPU-seconds an hour",
}
_JITTER_RATIO = 0.1


def over_quota(over: OverLimit, whose: str, draw: float, headers: MoreHeaders = ()) -> OverQuota:
    """Return the 429. `whose` is the owner of the limit; `draw` in 0..1 delays retries by up to 10 %.

    A `retry-after-ms` header is added to `headers`.
    """
    wait_s = over.retry_after_s * (1.0 + _JITTER_RATIO * draw)
    seconds = max(1, ceil(over.retry_after_s))
    if over.dimension == "concurrent_requests":
        message = (
            f"{whose} allows {over.limit} concurrent requests, and that many are running. "
            "Wait for one to end, or ask the operator for a higher limit."
        )
    else:
        message = (
            f"{whose} allows {over.limit} {_WORDS[over.dimension]}, and they are used up. "
            f"Try again in {seconds} s, or ask the operator for a higher limit."
        )
    kind = _TYPES.get(over.dimension, "tokens")
    answer = ErrorAnswer(
        429, kind, "rate_limit_exceeded", message, retry_after_s=max(1, ceil(over.retry_after_s + _spread(over, draw)))
    )
    return OverQuota(answer, over.dimension, (*headers, (b"retry-after-ms", b"%d" % max(1, ceil(wait_s * 1000)))))


def larger_than_all(over: OverLimit, whose: str) -> OverQuota:
    """Return the 400 for a request that no waiting would make possible."""
    message = (
        f"{whose} allows {over.limit} {_WORDS[over.dimension]}, and this request alone needs more, so waiting does "
        "not help. Send a shorter prompt, request less output, or ask the operator for a higher limit."
    )
    answer = ErrorAnswer(400, "invalid_request_error", "request_over_quota", message)
    return OverQuota(answer, over.dimension)


def request_headers(accounts: Iterable[QuotaAccount]) -> MoreHeaders:
    """Return the `x-ratelimit-` headers for requests as of the last bucket update; none without a limit.

    That update was on this request's way in.
    """
    left = _left(accounts, (REQUESTS,))
    if left is None:
        return ()
    limit, remaining, reset_us = left
    return (
        (b"x-ratelimit-limit-requests", b"%d" % limit),
        (b"x-ratelimit-remaining-requests", b"%d" % remaining),
        (b"x-ratelimit-reset-requests", duration(reset_us)),
    )


def token_headers(accounts: Iterable[QuotaAccount]) -> MoreHeaders:
    left = _left(accounts, (INPUT, OUTPUT))
    if left is None:
        return ()
    limit, remaining, reset_us = left
    return (
        (b"x-ratelimit-limit-tokens", b"%d" % limit),
        (b"x-ratelimit-remaining-tokens", b"%d" % remaining),
        (b"x-ratelimit-reset-tokens", duration(reset_us)),
    )


def _left(accounts: Iterable[QuotaAccount], dimensions: tuple[int, ...]) -> tuple[int, int, int] | None:
    """Return limit, remaining amount, and microseconds to full recovery of the limit that is nearest to exhaustion.

    For a lease, the remainder is the local part plus the estimated part at the bus. None if nothing is limited.
    """
    nearest: tuple[QuotaAccount, int, TokenBucket] | None = None
    least = least_limit = 0
    for account in accounts:
        for index in dimensions:
            bucket = account.buckets[index]
            if bucket is not None:
                headroom = bucket.capacity - bucket.level
                if nearest is None or headroom * least_limit < least * bucket.limit:
                    nearest, least, least_limit = (account, index, bucket), headroom, bucket.limit
    if nearest is None:
        return None
    account, index, bucket = nearest
    if not bucket.leased or account.lease is None:
        return bucket.limit, least // bucket.unit if least > 0 else 0, bucket.full_again_us()
    remaining = least + account.lease.rate(index).estimated_bus_units(bucket, bucket.updated_us)
    at_once = shared_burst(index, bucket)
    missing_us = max(0, at_once * bucket.unit - remaining) // max(1, bucket.limit)
    return bucket.limit, max(0, min(at_once, remaining // bucket.unit)), missing_us


def duration(us: int) -> bytes:
    """Return a duration of `us` microseconds in OpenAI's format, rounded up: `20ms`, `8.6s`, `1m0s`."""
    if us < US_PER_S:
        return b"%dms" % -(-us // 1000)
    if us < 60 * US_PER_S:
        seconds, tenths = divmod(-(-us // 100_000), 10)
        return b"%d.%ds" % (seconds, tenths)
    minutes, seconds = divmod(-(-us // US_PER_S), 60)
    return b"%dm%ds" % (minutes, seconds)


def _spread(over: OverLimit, draw: float) -> float:
    """Return the seconds by which `draw` delays `retry-after`: 0 for waits below 10 s, where 1 s is over a tenth."""
    return over.retry_after_s * _JITTER_RATIO * draw if over.retry_after_s >= 1.0 / _JITTER_RATIO else 0.0
