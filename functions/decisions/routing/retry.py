"""Further attempts of a request: retries on other replicas after a failure, and hedges beside a slow attempt.

They are made only before anything was sent to the client, never twice on one replica, never after the deadline, and
under a budget. Retries may add at most a fixed share to a pool's traffic, so that a failing pool is not overloaded by
its own retries (Finagle's and Envoy's rule: 20 % of requests, with a small floor so that quiet gateways may retry at
all). The RoutingPolicy's `retry` sets the number of attempts and the share. A share of 0 disables retries.

A full engine may request a pause (`Retry-After`). No request goes to it meanwhile, but for RETRY_AFTER_MAX_S at most:
a heartbeat a second reports its load, and a wrong digit must not remove a replica for a day.
Worked example (test_worked_example_of_retry_after): `2.5` means 2.5 s, `86400` means 30; a date or nonsense is ignored.
"""

from collections import deque
from dataclasses import dataclass
from enum import Enum
from math import ceil


class AttemptFailure(Enum):
    """Reason why an attempt ended without an answer. Values are metric labels."""

    CONNECT = "connect"  # refused, unreachable, or no answer to the handshake in time
    RESET = "reset"  # the connection broke before the answer began
    FIRST_BYTE = "first_byte"  # accepted, then silent past the attempt's time
    SILENT = "silent"  # a stream that began and then stopped; never retried, but counted against the replica
    REPLICA_LOST = "replica_lost"  # the fleet view reports it dead or hung
    OVERLOADED = "overloaded"  # 429 or 503 from the engine
    ENGINE_ERROR = "engine_error"  # 500, 502 or 504 from the engine
    ADAPTER_MISSING = "adapter_missing"  # the engine does not have the adapter that its agent announced
    ABORTED = "aborted"  # 200, then finish_reason abort without a token: the engine is draining
    BAD_ANSWER = "bad_answer"  # not HTTP, not the requested media type, or without an end
    TOO_LARGE = "too_large"  # the answer exceeds the bounds; the request causes that on any replica


# Failures after which loading the adapter on another replica is worth its cost: the replica is gone, or lacks the
# adapter. If a replica is full or fails on the prompt, the adapter would be loaded on one replica after the other.
WORTH_A_LOAD = frozenset(
    {
        AttemptFailure.ADAPTER_MISSING,
        AttemptFailure.CONNECT,
        AttemptFailure.RESET,
        AttemptFailure.REPLICA_LOST,
        AttemptFailure.ABORTED,
    }
)
# Failures that are evidence against the replica rather than the request.
EVIDENCE = frozenset(
    {
        AttemptFailure.CONNECT,
        AttemptFailure.RESET,
        AttemptFailure.FIRST_BYTE,
        AttemptFailure.SILENT,
        AttemptFailure.BAD_ANSWER,
    }
)
# Failures before the engine has begun to work.
REFUSALS = frozenset({AttemptFailure.CONNECT, AttemptFailure.OVERLOADED, AttemptFailure.ADAPTER_MISSING})
RETRY_AFTER_MAX_S = 30.0
_SECONDS_MAX_BYTES = 16


def retry_after_s(retry_after: bytes) -> float:
    """Return the seconds of a Retry-After header, at most RETRY_AFTER_MAX_S; 0 if it has no valid number."""
    if len(retry_after) > _SECONDS_MAX_BYTES or not retry_after.replace(b".", b"", 1).isdigit():
        return 0.0
    return min(float(retry_after), RETRY_AFTER_MAX_S)


# The prompt may cause an engine error, and such a prompt must not be tried on the whole pool.
_MAX_ENGINE_ERRORS = 2
# The prompt may also cause a replica's end. Whatever the policy allows, one more replica is risked.
DEATHS_MAX = 2
_DEATHS = frozenset({AttemptFailure.RESET, AttemptFailure.REPLICA_LOST})


def count_lost_replicas(failures: tuple[AttemptFailure, ...]) -> int:
    """Return how many of the attempts failed because the replica died or hung while it had the request."""
    return sum(failure in _DEATHS for failure in failures)


@dataclass(slots=True)
class RetryBudget:
    """Retry budget of one pool: requests fill it and retries drain it. Times are monotonic seconds.

    The share is an argument, since a push may change it.
    """

    tokens: float = 10.0
    updated_s: float = 0.0
    _MAX_TOKENS = 100.0
    _FLOOR_PER_S = 10.0  # granted each second even without traffic

    def on_request(self, budget_ratio: float, now_s: float) -> None:
        """Add the share of one request, and what time has earned, up to the maximum. Call it for each request;
        `_refill` is inlined."""
        tokens = self.tokens + budget_ratio
        if now_s > self.updated_s:
            tokens += (now_s - self.updated_s) * self._FLOOR_PER_S
        self.updated_s = now_s
        self.tokens = tokens if tokens < self._MAX_TOKENS else self._MAX_TOKENS

    def try_spend(self, budget_ratio: float, now_s: float) -> bool:
        self._refill(now_s)
        if budget_ratio <= 0.0 or self.tokens < 1.0:
            return False
        self.tokens -= 1.0
        return True

    def _refill(self, now_s: float) -> None:
        elapsed_s = max(0.0, now_s - self.updated_s)
        self.updated_s = now_s
        self.tokens = min(self._MAX_TOKENS, self.tokens + elapsed_s * self._FLOOR_PER_S)


def may_retry(
    failures: tuple[AttemptFailure, ...], max_attempts: int, now_s: float, deadline_s: float, body_bytes_sent: int
) -> bool:
    """Return True if one more attempt is allowed after these failures: attempts are left, the deadline has not passed,
    no body byte was sent, no answer was too large and engine errors are few. The caller checks the budget
    afterwards."""
    if body_bytes_sent > 0 or now_s >= deadline_s or len(failures) >= max_attempts:
        return False
    if AttemptFailure.TOO_LARGE in failures:
        return False
    return failures.count(AttemptFailure.ENGINE_ERROR) < _MAX_ENGINE_ERRORS


# Hedge delay: the wait for a first token after which a second attempt beside the first is worth its cost.
#
# 19 of 20 comparable requests should have their first token by then. The ratio of real to predicted time is kept for
# the last `WINDOW` first tokens of the pool, and
#
#     wait = max(hedgeAfter, p95 of (took / predicted) x predicted)
#
# Worked example (test_worked_example_of_the_prologue): 200 ms are predicted; 95 in 100 of the last tokens took at most
# 2.5 times their prediction. With `hedgeAfter: 300ms` the second attempt begins after 500 ms, and for a prediction of
# 50 ms after 300. Until enough is known, the ratio is `UNKNOWN_RATIO`.


WINDOW = 256
_LEAST_KNOWN = 40  # with fewer samples, a 95th percentile is chance
UNKNOWN_RATIO = 4.0
_LEAST_PREDICTED_S = 0.001  # the prediction for an idle replica may be 0


class FirstTokens:
    """Ratios of real to predicted time to first token of one pool. Owned by one event loop."""

    __slots__ = ("_fresh", "_p95", "_ratios")

    def __init__(self) -> None:
        self._ratios: deque[float] = deque(maxlen=WINDOW)
        self._p95 = UNKNOWN_RATIO
        self._fresh = 0  # samples since the percentile was computed

    def record_first_token(self, predicted_s: float, took_s: float) -> None:
        self._ratios.append(took_s / max(predicted_s, _LEAST_PREDICTED_S))
        self._fresh += 1

    def wait_s(self, predicted_s: float, hedge_after_s: float) -> float:
        """Return how many seconds to wait for a first token before hedging, at least `hedge_after_s`."""
        if self._fresh >= _LEAST_KNOWN:
            self._fresh = 0
            self._p95 = sorted(self._ratios)[ceil(0.95 * len(self._ratios)) - 1]
        return max(hedge_after_s, self._p95 * max(predicted_s, _LEAST_PREDICTED_S))
