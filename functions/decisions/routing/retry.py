"""Further attempts of a request: retries on other replicas after a failure, and hedges beside a slow one.

Only while nothing has gone to the client, never twice on one replica, never after the deadline, and under a budget:
retries may add at most a fixed share to a pool's traffic, so that a failing pool is not buried under its own retries
(Finagle's and Envoy's rule: 20 % of requests, with a small floor so that quiet gateways may retry at all). How many
attempts and which share are the RoutingPolicy's to say (`retry`); a share of nothing means no retries, floor or not.

An engine that is full may say for how long it wants to be left alone (`Retry-After`). Nothing goes to it meanwhile, but
never for longer than RETRY_AFTER_MAX_S: a heartbeat a second tells how full it is, and a slip of a digit must not cost
a replica for a day.
Worked example (test_worked_example_of_retry_after): `2.5` are 2.5 s, `86400` are 30, a date or nonsense is not heard.
"""

from collections import deque
from dataclasses import dataclass
from enum import Enum
from math import ceil


class Failure(Enum):
    """How one attempt ended without an answer. Values are metric labels."""

    CONNECT = "connect"  # refused, unreachable, or no answer to the handshake in time
    RESET = "reset"  # the connection broke before the answer began
    FIRST_BYTE = "first_byte"  # accepted, then silent past the attempt's time
    SILENT = "silent"  # a stream that began and then stopped; never retried, but it tells about the replica
    REPLICA_LOST = "replica_lost"  # the fleet says that it is dead or hung
    OVERLOADED = "overloaded"  # 429 or 503 from the engine
    ENGINE_ERROR = "engine_error"  # 500, 502 or 504 from the engine
    ADAPTER_MISSING = "adapter_missing"  # the engine does not have the adapter that its agent announced
    ABORTED = "aborted"  # 200, then finish_reason abort without a token: the engine is draining
    BAD_ANSWER = "bad_answer"  # not HTTP, not the media type that was asked for, or without an end
    TOO_LARGE = "too_large"  # what was asked for makes an answer over the bounds: the request's doing, on any replica


# Failures after which a load of the adapter on another replica is worth its cost: the replica is gone, or lacks it. One
# that is full or breaks on the prompt is not: the adapter would walk through the pool.
WORTH_A_LOAD = frozenset(
    {Failure.ADAPTER_MISSING, Failure.CONNECT, Failure.RESET, Failure.REPLICA_LOST, Failure.ABORTED}
)
# What a failure says about the replica rather than about the request.
EVIDENCE = frozenset({Failure.CONNECT, Failure.RESET, Failure.FIRST_BYTE, Failure.SILENT, Failure.BAD_ANSWER})
# With which an engine has not begun to work.
REFUSALS = frozenset({Failure.CONNECT, Failure.OVERLOADED, Failure.ADAPTER_MISSING})
RETRY_AFTER_MAX_S = 30.0
_SECONDS_MAX_BYTES = 16


def retry_after_s(retry_after: bytes) -> float:
    """The seconds that a Retry-After header asks for, within bounds; 0 where it says none."""
    if len(retry_after) > _SECONDS_MAX_BYTES or not retry_after.replace(b".", b"", 1).isdigit():
        return 0.0
    return min(float(retry_after), RETRY_AFTER_MAX_S)


# An engine error may be the prompt's doing: such a prompt must not walk through the whole pool.
_MAX_ENGINE_ERRORS = 2
# A replica's end, too, whatever the policy allows and however well the request is known: it is risked on one more.
DEATHS_MAX = 2
_DEATHS = frozenset({Failure.RESET, Failure.REPLICA_LOST})


def died_with(failures: tuple[Failure, ...]) -> int:
    """Replicas that went, or hung, with the request in their hands."""
    return sum(failure in _DEATHS for failure in failures)


@dataclass(slots=True)
class RetryBudget:
    """One pool's bucket, which requests fill and retries drain. Times are monotonic seconds.

    The share is an argument, since a push may change it while the bucket stands.
    """

    tokens: float = 10.0
    updated_s: float = 0.0
    _MAX_TOKENS = 100.0
    _FLOOR_PER_S = 10.0  # granted each second even without traffic

    def on_request(self, budget_ratio: float, now_s: float) -> None:
        """For each request: what `_refill` says, without its call."""
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
    failures: tuple[Failure, ...], max_attempts: int, now_s: float, deadline_s: float, body_bytes_sent: int
) -> bool:
    """Whether one more attempt is allowed after these failures; the budget is asked separately, and last."""
    if body_bytes_sent > 0 or now_s >= deadline_s or len(failures) >= max_attempts:
        return False
    if Failure.TOO_LARGE in failures:
        return False
    return failures.count(Failure.ENGINE_ERROR) < _MAX_ENGINE_ERRORS


# Hedge delay: the wait for a first token after which a second attempt beside the first is worth its cost.
#
# Not before 19 in 20 requests that looked like it had begun: what a pool's first tokens really took, over what was
# predicted, is remembered for the last `WINDOW` of them, and
#
#     wait = max(hedgeAfter, p95 of (took / predicted) x predicted)
#
# Worked example (test_worked_example_of_the_prologue): predicted are 200 ms; of the last tokens 95 in 100 took at most
# 2.5 times what was predicted. With `hedgeAfter: 300ms` the second attempt begins after 500 ms, and for a prediction of
# 50 ms after 300. Until enough is known, a first token may take `UNKNOWN_RATIO` times what was predicted.


WINDOW = 256
_LEAST_KNOWN = 40  # below, a 95th percentile is one request's luck
UNKNOWN_RATIO = 4.0
_LEAST_PREDICTED_S = 0.001  # an idle replica is predicted at nothing


class FirstTokens:
    """One pool's; owned by one event loop."""

    __slots__ = ("_fresh", "_p95", "_ratios")

    def __init__(self) -> None:
        self._ratios: deque[float] = deque(maxlen=WINDOW)
        self._p95 = UNKNOWN_RATIO
        self._fresh = 0  # learnt since the percentile was computed

    def took(self, predicted_s: float, took_s: float) -> None:
        self._ratios.append(took_s / max(predicted_s, _LEAST_PREDICTED_S))
        self._fresh += 1

    def wait_s(self, predicted_s: float, hedge_after_s: float) -> float:
        """How long to wait for a first token before it is asked for a second time."""
        if self._fresh >= _LEAST_KNOWN:
            self._fresh = 0
            self._p95 = sorted(self._ratios)[ceil(0.95 * len(self._ratios)) - 1]
        return max(hedge_after_s, self._p95 * max(predicted_s, _LEAST_PREDICTED_S))
