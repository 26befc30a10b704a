"""Sequential test of a rate against a limit: valid when looked at after every request. Pure.

n requests of which k did something (failed, were slow) speak against "at most p0 of all do it" with the weight

    e(k, n, p0) = mean over odds ratios r of   r^k / (1 + (r - 1) p0)^n

Each term is the likelihood ratio of an alternative whose odds are r times those of p0. Under the hypothesis no request,
whatever came before it, is expected to raise the weight; so by Ville's inequality the chance that it EVER reaches
1/alpha is at most alpha. No schedule of looks, no correction for looking often. The grid of ratios spares everybody
from saying how much worse a bad version is.

Worked example (test_worked_example_of_the_prologue): 20 failures among 200 requests weigh 2.4 million against p0 = 2 %;
where 1 % is shared by 6 conditions of two tests each, 1,200 is enough. 6 failures among 200 weigh 0.5: 3 % of 200
proves nothing.

A trial may also have done a share of it: of a stream's gaps a tenth were long. For a share x from 0 to 1, r^x is at
most 1 + (r - 1) x, so shares weigh no more than whole events of the same mean (test_shares_prove_no_more_than_events).

Turned around it bounds what is true, at all moments at once: `upper_bound` and `lower_bound` of a rate, and of a
quantile (`quantile_above_ms`, `quantile_below_ms`).
Worked example (test_worked_example_of_a_bound): no failure among 1,000, with alpha = 1/1200, is a rate below 0.80 %.

Assumption: given all requests before it, each one has a chance of at most p0. Requests of one version are taken as
independent. A burst that one lost replica makes is not, so that it comes here as one failure (`losses`).
Source: Wald's sequential test with a mixture of alternatives, a test martingale (Shafer et al., Statist. Sci. 2011).
Neighbours: `conditions` asks; `quantile_sketch` counts.
"""

from bisect import bisect_left
from itertools import accumulate
from math import exp, inf, log, log1p

from functions.decisions.quantile_sketch import QuantileSketch, upper_edge_ms

# How much likelier than allowed, as odds: from a little worse to dead.
ODDS_RATIOS = (1.25, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0, 100.0, 1000.0)
_BISECTIONS = 40


def log_weight(events: float, trials: float, limit_ratio: float) -> float:
    """ln e: how much speaks against "at most `limit_ratio` of all"; refuted at ln(1/alpha)."""
    if limit_ratio >= 1.0:
        return -inf
    if limit_ratio <= 0.0:
        return inf if events else 0.0
    terms = [events * log(odds) - trials * log1p((odds - 1) * limit_ratio) for odds in ODDS_RATIOS]
    highest = max(terms)
    return highest + log(sum(exp(term - highest) for term in terms) / len(terms))


def upper_bound(events: float, trials: float, alpha: float) -> float:
    """The rate is at most this, but for a chance of alpha; 1 where nothing can be said.

    The smallest rate p for which "at least p of all" is refuted: the weight of what did not happen grows with p.
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
    """The rate is at least this, but for a chance of alpha; 0 where nothing can be said."""
    return 1 - upper_bound(trials - events, trials, alpha)


def quantile_below_ms(sketch: QuantileSketch, q: float, alpha: float, grain: int = 1) -> float | None:
    """The q-quantile is at most this, but for a chance of alpha; None where too little was seen.

    For each bucket edge, "less than q of all are up to here" is tested. The weight grows from edge to edge, so that
    taking the first that is refuted costs no more than the one test at the last edge below the true quantile.
    `grain`: what one trial adds to the sketch's count.
    """
    found = _first_refuted(list(sketch.buckets().items()), sketch.count, q, alpha, grain)
    return upper_edge_ms(found) if found is not None else None


def quantile_above_ms(sketch: QuantileSketch, q: float, alpha: float, grain: int = 1) -> float | None:
    """The q-quantile is at least this, but for a chance of alpha; None where too little was seen."""
    found = _first_refuted(list(reversed(sketch.buckets().items())), sketch.count, 1 - q, alpha, grain)
    return upper_edge_ms(found - 1) if found is not None else None


def _first_refuted(
    buckets: list[tuple[int, int]], count: int, limit_ratio: float, alpha: float, grain: int
) -> int | None:
    """The first bucket up to which so many lie that "at most `limit_ratio` of all" is refuted."""
    counts = list(accumulate(count for _, count in buckets))
    needed, trials = log(1 / alpha), count / grain
    place = bisect_left(counts, True, key=lambda seen: log_weight(seen / grain, trials, limit_ratio) >= needed)
    return buckets[place][0] if place < len(buckets) else None
