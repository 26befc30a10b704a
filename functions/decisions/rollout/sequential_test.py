"""Sequential test of a rate against a limit: valid when evaluated after every request. Pure functions.

k of n requests with an event (failed, slow) are evidence against "the rate is at most p0", with the weight

    e(k, n, p0) = mean over odds ratios r of   r^k / (1 + (r - 1) p0)^n

Each term is the likelihood ratio of an alternative with odds r times those of p0. Under the hypothesis no request,
whatever came before it, is expected to raise the weight. So by Ville's inequality the probability that the weight
EVER reaches 1/alpha is at most alpha. Repeated evaluation needs no schedule and no correction. The grid of ratios
replaces a guess of how much worse a bad version is.

Worked example (test_worked_example_of_the_prologue): 20 failures among 200 requests weigh 2.4 million against p0 = 2
%; if 6 conditions of two tests each share 1 %, 1,200 is enough. 6 failures among 200 weigh 0.5: 3 % of 200 proves
nothing.

A request may also be a fractional event: a tenth of a stream's gaps were long. For a share x from 0 to 1, r^x is at
most 1 + (r - 1) x, so shares weigh no more than whole events of the same mean
(test_fractional_events_prove_no_more_than_whole_ones).

The inverse gives bounds that hold at all times together: `upper_bound` and `lower_bound` of a rate, and of a quantile
(`quantile_above_ms`, `quantile_below_ms`). Worked example (test_worked_example_of_a_bound): no failure among 1,000,
with alpha = 1/1200, is a rate below 0.80 %.

Assumption: given all earlier requests, each one has a probability of at most p0. Requests of one version count as
independent. A burst from one lost replica is not independent, so it counts as one failure (`losses`). Source: Wald's
sequential test with a mixture of alternatives, a test martingale (Shafer et al., Statist. Sci. 2011). Neighbours:
`conditions` uses the test; `quantile_sketch` counts.
"""

from bisect import bisect_left
from itertools import accumulate
from math import exp, inf, log, log1p

from functions.decisions.quantile_sketch import QuantileSketch, upper_edge_ms

# Odds relative to the limit: from slightly worse to failing always.
ODDS_RATIOS = (1.25, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0, 100.0, 1000.0)
_BISECTIONS = 40


def log_weight(events: float, trials: float, limit_ratio: float) -> float:
    """Return ln e, the evidence of `events` in `trials` against "at most `limit_ratio` of all", which is refuted at
    ln(1/alpha)."""
    if limit_ratio >= 1.0:
        return -inf
    if limit_ratio <= 0.0:
        return inf if events else 0.0
    terms = [events * log(odds) - trials * log1p((odds - 1) * limit_ratio) for odds in ODDS_RATIOS]
    highest = max(terms)
    return highest + log(sum(exp(term - highest) for term in terms) / len(terms))


def upper_bound(events: float, trials: float, alpha: float) -> float:
    """Return an upper bound of the rate of `events` in `trials` with confidence 1 - alpha; 1 if there is none.

    It is the smallest rate p for which "at least p of all" is refuted: the weight of the non-events grows with p.
    """
    if events >= trials:
        return 1.0
    needed, low, high = log(1 / alpha), events / trials, 1.0
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        if log_weight(trials - events, trials, 1 - middle) >= needed:
            high = middle
        else:
            low = middle
    return high


def lower_bound(events: float, trials: float, alpha: float) -> float:
    """Return a lower bound of the rate of `events` in `trials` with confidence 1 - alpha; 0 if there is none."""
    return 1 - upper_bound(trials - events, trials, alpha)


def quantile_below_ms(sketch: QuantileSketch, q: float, alpha: float, grain: int = 1) -> float | None:
    """Return an upper bound of the q-quantile with confidence 1 - alpha; None with too few values.

    At each bucket edge, "less than q of all are up to here" is tested. The weight grows from edge to edge, so taking
    the first refuted edge costs no more than the one test at the last edge below the true quantile. `grain`: amount
    that one trial adds to the sketch's count.
    """
    found = _first_refuted(list(sketch.buckets().items()), sketch.count, q, alpha, grain)
    return upper_edge_ms(found) if found is not None else None


def quantile_above_ms(sketch: QuantileSketch, q: float, alpha: float, grain: int = 1) -> float | None:
    """Return a lower bound of the q-quantile with confidence 1 - alpha; None with too few values."""
    found = _first_refuted(list(reversed(sketch.buckets().items())), sketch.count, 1 - q, alpha, grain)
    return upper_edge_ms(found - 1) if found is not None else None


def _first_refuted(
    buckets: list[tuple[int, int]], count: int, limit_ratio: float, alpha: float, grain: int
) -> int | None:
    """Return the first bucket at which the cumulative count refutes "at most `limit_ratio` of all"; None if none
    does."""
    counts = list(accumulate(count for _, count in buckets))
    needed, trials = log(1 / alpha), count / grain
    place = bisect_left(counts, True, key=lambda seen: log_weight(seen / grain, trials, limit_ratio) >= needed)
    return buckets[place][0] if place < len(buckets) else None
