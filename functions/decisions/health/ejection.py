"""Ejection of a replica: a circuit breaker on its own failures, and outlier detection within its pool.

    well --- evidence, or FAULTS_MAX faults in a row ---> out for BASE x 2^n seconds, at most CAP
     ^                                                      |
     |                                                      v
     '---- the probe was answered ------------------- on probation: one probe at a time
                                                            '---- the probe failed: out, for twice as long

A request that finds no other suitable replica does not wait for the probe: it is sent in addition to it.

Evidence is the behaviour of a dead machine: connections refused or reset, silence, invalid answers. A fault is an
engine's own 500. An answer counts only if its request was sent after the ejection. The ejections are forgotten
FORGET_AFTER_S after recovery, so a replica that is up for three seconds and down for three is out longer each time.
Worked example (test_worked_example_from_the_prologue): refused at 0 s, out until 5. At 5 s a probe is sent, and at 6
a second request is routed elsewhere. At 7 the probe fails: out until 17. The next one is answered: well.

A replica that answers 429 or 503 is full, not ill: it counts as slower by REFUSAL_MS, for REFUSAL_S. Otherwise fast
rejections would make it look like the fastest of all. Its Retry-After time is respected.

Neighbours: `functions.fleet.outlier_status` has one breaker for each replica in trouble, and gathers the input of
outlier detection (below).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor
from statistics import fmean, median, pstdev

from functions.api.ids import ReplicaId

EJECTION_BASE_S = 5.0
EJECTION_CAP_S = 60.0
FORGET_AFTER_S = 60.0
FAULTS_MAX = 5
PROBE_S = 10.0  # after this time without an answer, another probe may be sent
REFUSAL_MS = 5_000.0
REFUSAL_S = 1.0  # until the next heartbeat, which reports the load
_NEVER_S = float("-inf")
_MAX_DOUBLINGS = 10


class Breaker:
    """Circuit breaker of one replica. All times are monotonic seconds."""

    __slots__ = (
        "_ejected_at_s",
        "_ejections",
        "_faults",
        "_is_probation",
        "_probe_until_s",
        "_refused_until_s",
        "_rests_until_s",
        "_until_s",
        "_well_s",
    )

    def __init__(self) -> None:
        self._ejections = self._faults = 0
        self._ejected_at_s = self._until_s = self._probe_until_s = self._refused_until_s = self._well_s = _NEVER_S
        self._rests_until_s = _NEVER_S
        self._is_probation = False

    def eject(self, now_s: float) -> float:
        """Record evidence against the replica and eject it, each time for twice as long. Return the seconds until it is
        back; while it is ejected already, the rest of that time."""
        if now_s < self._until_s:
            return self._until_s - now_s
        if not self._is_probation and now_s - self._well_s >= FORGET_AFTER_S:
            self._ejections = 0
        duration_s: float = min(EJECTION_CAP_S, EJECTION_BASE_S * 2.0 ** min(self._ejections, _MAX_DOUBLINGS))
        self._ejections += 1
        self._faults = 0
        self._is_probation = True
        self._ejected_at_s, self._until_s, self._probe_until_s = now_s, now_s + duration_s, _NEVER_S
        return duration_s

    def record_fault(self, now_s: float) -> float:
        """Record an answer of 500. Eject the replica after FAULTS_MAX in a row, or after one on probation, and return
        the seconds of ejection, else 0."""
        self._faults += 1
        return self.eject(now_s) if self._faults >= FAULTS_MAX or self._is_probation else 0.0

    def record_refusal(self, now_s: float, retry_after_s: float = 0.0) -> None:
        """Record an answer of 429 or 503, with its Retry-After (0: none): the replica counts as slower for a while, and
        a probe in flight has ended."""
        self._rests_until_s = max(self._rests_until_s, now_s + retry_after_s)
        self._refused_until_s = max(now_s + REFUSAL_S, self._rests_until_s)
        self._probe_until_s = _NEVER_S  # the replica lives, but this was no answer: the next request may probe

    def sent(self, now_s: float) -> None:
        """Record a request sent to the replica; after an ejection, on probation, it is the probe."""
        if self._is_probation and now_s >= self._until_s:
            self._probe_until_s = now_s + PROBE_S

    def answered(self, sent_s: float, now_s: float) -> None:
        """Record a proper answer to a request sent at `sent_s`: faults, penalty and probation end. An answer to a
        request from before the ejection is ignored."""
        if sent_s < self._ejected_at_s:
            return
        self._faults, self._refused_until_s = 0, _NEVER_S
        if self._is_probation:
            self._is_probation, self._well_s = False, now_s
            self._until_s = self._probe_until_s = _NEVER_S

    def is_out(self, now_s: float) -> bool:
        """Return True if the replica is ejected, or on probation with a probe in flight."""
        return now_s < self._until_s or now_s < self._probe_until_s

    def is_probed(self, now_s: float) -> bool:
        """Return True if the ejection is over and a probe is in flight."""
        return self._until_s <= now_s < self._probe_until_s

    def rest_s(self, now_s: float) -> float:
        """Return the seconds left of the replica's Retry-After time; 0 if it is over."""
        return max(0.0, self._rests_until_s - now_s)

    def penalty_ms(self, now_s: float) -> float:
        return REFUSAL_MS if now_s < self._refused_until_s else 0.0

    def is_forgotten(self, now_s: float) -> bool:
        """Return True if nothing about the replica needs to be remembered: it has been well for FORGET_AFTER_S."""
        if self._is_probation or self._faults or now_s < max(self._refused_until_s, self._rests_until_s):
            return False
        return now_s - self._well_s >= FORGET_AFTER_S


# Outlier detection: replicas with many more errors, or much slower, than the others of their pool.
#
# Replicas of one pool are compared over one interval, if HOSTS_MIN or more of them have at least REQUESTS_MIN
# requests:
#
#     errors   success ratio below mean - DEVIATIONS x standard deviation, and by at least MARGIN_RATIO below the mean;
#              or below HOPELESS_RATIO if most are well: two bad ones among eight are no outliers by the first rule
#     slow     milliseconds to first token per token computed (plus FLOOR_TOKENS) above SLOW_FACTOR x the pool's median
#
# The floor is the fixed cost of a request; without it a fully cached prompt would look infinitely slow. At most
# CAP_RATIO of the pool is ejected as outliers at a time, the worst first, but one always may be. Worked example
# (test_worked_example_from_the_prologue): five of six replicas always succeed, one in 80 of 100 cases. Mean 0.967,
# deviation 0.075: the bound is the lower of 0.867 and 0.825, and the one at 0.80 is out. At 0.90 the mean is 0.983
# and the bound 0.883: it stays.


INTERVAL_S = 10.0
HOSTS_MIN = 5
REQUESTS_MIN = 20
DEVIATIONS = 1.9
MARGIN_RATIO = 0.1  # near-equal replicas have almost no deviation: an odd one among them need not be bad
HOPELESS_RATIO, WELL_RATIO = 0.5, 0.9  # success ratios
SLOW_FACTOR = 4.0
FLOOR_TOKENS = 256
CAP_RATIO = 0.1


@dataclass(slots=True)
class RequestCounts:
    """Requests of one replica in the interval."""

    replica_id: ReplicaId
    requests: int = 0
    failures: int = 0
    timed: int = 0  # streams with a first token
    ms_per_token_sum: float = 0.0

    def failed(self) -> None:
        self.requests += 1
        self.failures += 1

    def first_token(self, ttft_ms: float, computed_tokens: int) -> None:
        self.timed += 1
        self.ms_per_token_sum += ttft_ms / (computed_tokens + FLOOR_TOKENS)


def outliers(seen: Sequence[RequestCounts], pool_replicas: int, out_already: int) -> list[ReplicaId]:
    """Return the replicas to eject, the worst first, as many as the cap on outliers in the pool allows; `out_already`
    is the number already ejected as outliers."""
    room = max(1, floor(CAP_RATIO * pool_replicas)) - out_already
    found = dict.fromkeys([*_failing(seen), *_slow(seen)])
    return list(found)[: max(0, room)]


def _failing(seen: Sequence[RequestCounts]) -> list[ReplicaId]:
    judged = [(1.0 - each.failures / each.requests, each.replica_id) for each in seen if each.requests >= REQUESTS_MIN]
    if len(judged) < HOSTS_MIN:
        return []
    ratios = [ratio for ratio, _ in judged]
    mean = fmean(ratios)
    bound = min(mean - MARGIN_RATIO, mean - DEVIATIONS * pstdev(ratios))
    if median(ratios) >= WELL_RATIO:
        bound = max(bound, HOPELESS_RATIO)
    return [replica_id for ratio, replica_id in sorted(judged) if ratio < bound]


def _slow(seen: Sequence[RequestCounts]) -> list[ReplicaId]:
    judged = [(each.ms_per_token_sum / each.timed, each.replica_id) for each in seen if each.timed >= REQUESTS_MIN]
    if len(judged) < HOSTS_MIN:
        return []
    bound = SLOW_FACTOR * median([pace for pace, _ in judged])
    return [replica_id for pace, replica_id in sorted(judged, reverse=True) if pace > bound]
