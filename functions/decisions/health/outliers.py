"""Which replicas do much worse than their fellows: those that answer, but too often with errors, or too slowly.

Compared within one pool over one interval, among replicas with at least REQUESTS_MIN requests, HOSTS_MIN of them or
more: with fewer there is no telling who is odd.

    errors   success ratio below mean - DEVIATIONS x standard deviation, and by at least MARGIN_RATIO below the mean;
             or below HOPELESS_RATIO where most are well: of two bad ones among eight, neither is an outlier in numbers
    slow     milliseconds to first token per token computed (plus FLOOR_TOKENS) above SLOW_FACTOR x the pool's median

The floor stands for what every request costs; without it a fully cached prompt would look infinitely slow.
At most CAP_RATIO of the pool is out at once for being an outlier, but one may always be: the worst first.
Worked example (test_worked_example_from_the_prologue): of six replicas five succeed always and one in 80 of 100 cases.
Mean 0.967, deviation 0.075: the bound is the lower of 0.867 and 0.825, and the one at 0.80 is out. At 0.90 the mean is
0.983 and the bound 0.883: it stays.

Neighbours: `breaker` decides on one replica's own failures; `functions.fleet.standing` gathers what is compared here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor
from statistics import fmean, median, pstdev

from functions.api.ids import ReplicaId

INTERVAL_S = 10.0
HOSTS_MIN = 5
REQUESTS_MIN = 20
DEVIATIONS = 1.9
MARGIN_RATIO = 0.1  # all but equal replicas have next to no deviation: the odd one among them need not be bad
HOPELESS_RATIO, WELL_RATIO = 0.5, 0.9  # of requests that succeed
SLOW_FACTOR = 4.0
FLOOR_TOKENS = 256
CAP_RATIO = 0.1


@dataclass(slots=True)
class Seen:
    """What one replica did in the interval."""

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


def outliers(seen: Sequence[Seen], pool_replicas: int, out_already: int) -> list[ReplicaId]:
    """Who is to be ejected, the worst first; `out_already` are out for being outliers."""
    room = max(1, floor(CAP_RATIO * pool_replicas)) - out_already
    found = dict.fromkeys([*_failing(seen), *_slow(seen)])
    return list(found)[: max(0, room)]


def _failing(seen: Sequence[Seen]) -> list[ReplicaId]:
    judged = [(1.0 - each.failures / each.requests, each.replica_id) for each in seen if each.requests >= REQUESTS_MIN]
    if len(judged) < HOSTS_MIN:
        return []
    ratios = [ratio for ratio, _ in judged]
    mean = fmean(ratios)
    bound = min(mean - MARGIN_RATIO, mean - DEVIATIONS * pstdev(ratios))
    if median(ratios) >= WELL_RATIO:
        bound = max(bound, HOPELESS_RATIO)
    return [replica_id for ratio, replica_id in sorted(judged) if ratio < bound]


def _slow(seen: Sequence[Seen]) -> list[ReplicaId]:
    judged = [(each.ms_per_token_sum / each.timed, each.replica_id) for each in seen if each.timed >= REQUESTS_MIN]
    if len(judged) < HOSTS_MIN:
        return []
    bound = SLOW_FACTOR * median([pace for pace, _ in judged])
    return [replica_id for pace, replica_id in sorted(judged, reverse=True) if pace > bound]
