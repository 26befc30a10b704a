"""Report on a rollout's evidence: both groups side by side, and each condition with its weight.

It uses the controller's own sketches and evaluation, so it shows the values that decide. Neighbours: `shoal rollout
watch` and the registry's console display it.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from functions.decisions.quantile_sketch import QuantileSketch
from functions.decisions.rollout.conditions import ConditionFinding
from functions.decisions.rollout.evaluation import Residency, evaluate
from functions.decisions.rollout.evidence import GroupStats, TrialEvidence
from functions.decisions.rollout.lifecycle import Rollout
from functions.decisions.rollout.messages import amount

Unit = Literal["", "%", "ms"]
Mood = Literal["good", "few", "suspected", "proven"]

QUANTILES = (0.5, 0.99)


@dataclass(frozen=True, slots=True)
class Row:
    """One measure of both groups; None if nothing was measured."""

    name: str
    unit: Unit
    control: float | None
    candidate: float | None

    @property
    def factor(self) -> float | None:
        """Ratio of the new version's duration to the old one's; None if either is unknown, or the measure is no
        duration."""
        if self.unit != "ms" or not self.control or self.candidate is None:
            return None
        return self.candidate / self.control


@dataclass(frozen=True, slots=True)
class ConditionReport:
    """One halt condition of the stage, and how near it is to halting."""

    text: str
    mood: Mood
    figures: str


@dataclass(frozen=True, slots=True)
class Figures:
    rows: tuple[Row, ...]
    conditions: tuple[ConditionReport, ...]
    why: str  # reason of the state


def stages_of(rollouts: Iterable[Rollout]) -> dict[str, int]:
    """Return by model, for active rollouts: 0 while it loads, then its stage counted from 1; the furthest of the
    model's channels."""
    stages: dict[str, int] = {}
    for row in rollouts:
        if row.is_active:
            stages[row.model] = max(stages.get(row.model, 0), row.stage + row.loaded)
    return stages


def figures_of(rollout: Rollout, evidence: TrialEvidence, now_unix_s: float) -> Figures:
    conditions: tuple[ConditionReport, ...] = ()
    why = rollout.reason
    if rollout.is_active and rollout.loaded:
        verdict = evaluate(rollout, evidence, Residency(), now_unix_s)
        conditions = tuple(_condition(finding) for finding in verdict.findings)
        why = verdict.reason
    return Figures(_rows(evidence.control, evidence.candidate), conditions, why)


def _rows(control: GroupStats, candidate: GroupStats) -> tuple[Row, ...]:
    counts = (
        Row("requests", "", control.requests, candidate.requests),
        Row("failed", "%", _percent(control), _percent(candidate)),
    )
    return (*counts, *(_row(name, of, q, control, candidate) for name, of in _SKETCHES for q in QUANTILES))


def _row(name: str, of: Callable[[GroupStats], QuantileSketch], q: float, one: GroupStats, other: GroupStats) -> Row:
    return Row(f"{name} p{round(q * 100)}", "ms", of(one).quantile(q), of(other).quantile(q))


_SKETCHES: tuple[tuple[str, Callable[[GroupStats], QuantileSketch]], ...] = (
    ("first token", lambda group: group.ttft_ms),
    ("between tokens", lambda group: group.inter_token_ms),
    ("whole answer", lambda group: group.total_ms),
)


def _percent(group: GroupStats) -> float | None:
    ratio = group.error_ratio
    return None if ratio is None else 100 * ratio


def _condition(finding: ConditionFinding) -> ConditionReport:
    limit = f", limit {amount(finding.limit, finding.unit)}" if finding.limit is not None else ""
    figures = f"{amount(finding.candidate, finding.unit)} against {amount(finding.control, finding.unit)}{limit}"
    if finding.is_proven:
        return ConditionReport(finding.text, "proven", figures)
    if finding.is_suspected:
        share = max(0.0, finding.log_weight) / finding.log_needed if finding.log_needed > 0 else 0.0
        return ConditionReport(finding.text, "suspected", f"{figures}, {share:.0%} of the evidence that halts")
    return ConditionReport(finding.text, "few" if finding.missing else "good", finding.missing or figures)
