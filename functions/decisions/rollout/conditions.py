"""Halt condition of a rollout: whether it holds for the candidate, compared with the control. Pure functions.

`is_suspected`: the condition holds by the plain estimates. The stage does not pass. `is_proven`: a good version would
show this evidence with a probability of at most alpha, however often it is tested
 (`sequential_test`). The stage is halted.

Each test uses half of alpha; the other half is for a bound on the control's own value:
    error_rate > 2%       k errors of n, against "at most max(2 %, U) fail"; the control's rate is at most U
    p99_ttft > 800ms      k first tokens above 800 ms, against "at most max(1 %, U)", U for the control as well
    error_rate > 2x       against "at most 2 U fail"
    p99_latency > 1.5x    k above 1.5 U, against "at most 1 %"; the control's 99th percentile is at most U
So a version as good as the control is not halted, whether both meet a limit or both miss it. A version that misses a
limit and is worse than the control is halted. A control without values gives no bound: then an absolute limit applies
alone, to a candidate with at least `FEW` values. With fewer, equal groups may differ only in which one reported first
(test_equal_groups_prove_nothing_however_few_they_are).

Worked example (test_worked_example_of_the_prologue), `p99_latency > 1.5x`: the control's p99 is 646 ms, after 5,000
requests surely at most U = 813 ms. Of 500 requests of the candidate 22 took more than 1.5 U = 1,219 ms. 4.4 % against
an allowed 1 % weighs 980,000; 2 x 600 is enough if 6 conditions share an alpha of 1 %.

Values in one bucket of a sketch count in favour of the candidate. Neighbours: `evaluation` tests all conditions of a
stage; `functions.api.expressions` has the grammar.
"""

from dataclasses import dataclass
from math import log
from typing import Literal

from functions.api.expressions import HaltCondition, Ratio, Seconds, TimesControl, parse_halt
from functions.decisions.quantile_sketch import QuantileSketch
from functions.decisions.rollout import sequential_test
from functions.decisions.rollout.evidence import STREAM_SHARES, GroupStats

FEW = 20  # values; a quantile or a rate of fewer is ignored

_QUANTILES: dict[str, tuple[str, float]] = {
    "p50_latency": ("total_ms", 0.5),
    "p95_latency": ("total_ms", 0.95),
    "p99_latency": ("total_ms", 0.99),
    "p50_ttft": ("ttft_ms", 0.5),
    "p95_ttft": ("ttft_ms", 0.95),
    "p99_ttft": ("ttft_ms", 0.99),
    "p95_inter_token": ("inter_token_ms", 0.95),
    "p99_inter_token": ("inter_token_ms", 0.99),
}

Unit = Literal["ratio", "ms"]


@dataclass(frozen=True, slots=True)
class ConditionFinding:
    """One condition with its figures, for the decision and for display."""

    text: str
    unit: Unit
    candidate: float | None  # plain estimates; None: too few values
    control: float | None
    limit: float | None  # limit for the candidate's estimate
    log_weight: float  # weight of the evidence against the candidate
    log_needed: float
    is_suspected: bool
    is_shared: bool = False  # the condition holds for the control too
    missing: str = ""  # the kind of value that is too few

    @property
    def is_proven(self) -> bool:
        return self.log_weight >= self.log_needed


def judge(text: str, candidate: GroupStats, control: GroupStats, alpha: float, few: int = FEW) -> ConditionFinding:
    """Test one halt condition of a rollout on both groups. `text` is canonical, from a RolloutEntry; alpha is its share
    of the false-alarm rate; below `few` values it is reported as missing some."""
    condition = parse_halt(text)
    if condition.metric == "error_rate":
        return _judge_errors(condition, candidate, control, alpha, few)
    attribute, q = _QUANTILES[condition.metric]
    sketches = getattr(candidate, attribute), getattr(control, attribute)
    grain = STREAM_SHARES if attribute == "inter_token_ms" else 1
    return _judge_quantile(condition, *sketches, q=q, alpha=alpha, few=few, grain=grain)


def _judge_errors(
    condition: HaltCondition, candidate: GroupStats, control: GroupStats, alpha: float, few: int
) -> ConditionFinding:
    is_above, threshold = condition.comparison[0] == ">", condition.threshold
    own, other = candidate.error_ratio, control.error_ratio
    k, n = (candidate.errors, control.errors), (candidate.requests, control.requests)
    bound = (sequential_test.upper_bound if is_above else sequential_test.lower_bound)(k[1], n[1], alpha / 2)
    is_relative, is_shared = isinstance(threshold, TimesControl), False
    if isinstance(threshold, TimesControl):
        smoothed = (k[1] + 1) / (n[1] + 1)  # one error more: a control without errors still allows some
        limit, tested = threshold.factor * smoothed, min(1.0, threshold.factor * bound)
    else:
        limit = tested = _ratio(threshold)
        is_shared = other is not None and _holds(condition, other, limit)
        if n[1] and (limit > 0 or is_shared):  # "> 0%" allows no error, unless the control has some
            tested = max(limit, bound) if is_above else min(limit, bound)
    weight = (
        sequential_test.log_weight(k[0], n[0], tested)
        if is_above
        else sequential_test.log_weight(n[0] - k[0], n[0], 1 - tested)
    )
    missing = _missing(n[0], n[1] if is_relative else None, few, "requests")
    return ConditionFinding(
        text=condition.text,
        unit="ratio",
        candidate=own,
        control=other,
        limit=limit,
        log_weight=weight if n[0] and (n[1] or (not is_relative and n[0] >= few)) else 0.0,
        log_needed=log(2 / alpha),
        is_suspected=own is not None and _holds(condition, own, limit),
        is_shared=is_shared,
        missing=missing,
    )


def _judge_quantile(
    condition: HaltCondition,
    candidate: QuantileSketch,
    control: QuantileSketch,
    *,
    q: float,
    alpha: float,
    few: int,
    grain: int,
) -> ConditionFinding:
    """Test a halt condition on a latency quantile. `grain`: amount that one request adds to a sketch's count."""
    threshold = condition.threshold
    own, other = candidate.quantile(q), control.quantile(q)
    is_relative, is_shared = isinstance(threshold, TimesControl), False
    edge: float | None  # threshold for the candidate's values
    if isinstance(threshold, TimesControl):
        limit = threshold.factor * other if other is not None else None
        bound = _quantile_bound(condition, control, q, alpha / 2, grain)
        edge = threshold.factor * bound if bound is not None else None
    else:
        limit = edge = _milliseconds(threshold)
        is_shared = other is not None and _holds(condition, other, edge)
    weight = 0.0
    if control.count or candidate.count >= few * grain:
        compared = control if control.count and not is_relative else None
        weight = _quantile_weight(condition, candidate, compared, edge=edge, q=q, alpha=alpha, grain=grain)
    counts = candidate.count // grain, control.count // grain
    missing = _missing(counts[0], counts[1] if is_relative else None, few, "measured requests")
    return ConditionFinding(
        text=condition.text,
        unit="ms",
        candidate=own,
        control=other,
        limit=limit,
        log_weight=weight,
        log_needed=log(2 / alpha),
        is_suspected=own is not None and limit is not None and _holds(condition, own, limit),
        is_shared=is_shared,
        missing=missing,
    )


def _quantile_bound(
    condition: HaltCondition, control: QuantileSketch, q: float, alpha: float, grain: int
) -> float | None:
    if condition.comparison[0] == ">":
        return sequential_test.quantile_below_ms(control, q, alpha, grain)
    return sequential_test.quantile_above_ms(control, q, alpha, grain)


def _quantile_weight(
    condition: HaltCondition,
    candidate: QuantileSketch,
    control: QuantileSketch | None,
    *,
    edge: float | None,
    q: float,
    alpha: float,
    grain: int,
) -> float:
    """Return the log weight of the evidence that the candidate's quantile breaches `edge`; 0 if there is none. With
    `control`, the candidate must also be worse than the control."""
    if edge is None or candidate.count == 0:
        return 0.0
    if condition.comparison[0] == ">":
        events, allowed = candidate.count_above(edge), 1 - q
        others = control.count - control.count_up_to(edge) if control is not None else 0
    else:
        events, allowed = candidate.count_up_to(edge), q
        others = control.count - control.count_above(edge) if control is not None else 0
    if control is not None:
        allowed = max(allowed, sequential_test.upper_bound(others / grain, control.count / grain, alpha / 2))
    return sequential_test.log_weight(events / grain, candidate.count / grain, allowed)


def _missing(candidate: int, control: int | None, few: int, what: str) -> str:
    if candidate < few:
        return f"{candidate} of {few} {what} of the new version"
    if control is not None and control < few:
        return f"{control} of {few} {what} of the old version to compare with"
    return ""


def _holds(condition: HaltCondition, value: float, limit: float) -> bool:
    match condition.comparison:
        case ">":
            return value > limit
        case ">=":
            return value >= limit
        case "<":
            return value < limit
        case "<=":
            return value <= limit


def _ratio(threshold: Ratio | Seconds | TimesControl) -> float:
    assert isinstance(threshold, Ratio), "the grammar lets error_rate be compared with nothing else"
    return threshold.value


def _milliseconds(threshold: Ratio | Seconds | TimesControl) -> float:
    assert isinstance(threshold, Seconds), "the grammar lets times be compared with nothing else"
    return threshold.value * 1000
