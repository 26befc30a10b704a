"""Reported rollout evidence is the evidence that decides: the same sketches and the same evaluation."""

import pytest

from functions.decisions.rollout.evaluation import Residency, evaluate
from functions.decisions.rollout.evidence import TrialEvidence
from functions.decisions.rollout.report import Figures, figures_of
from tests.cli.rollouts import NOW_UNIX_S, group, rollout


def moods(figures: Figures) -> dict[str, str]:
    return {condition.text: condition.mood for condition in figures.conditions}


@pytest.mark.parametrize(
    ("candidate", "expected"),
    [
        (group(5, 0, 400.0), {"error_rate > 2%": "few", "p99_latency > 2x": "few"}),
        (group(500, 0, 400.0), {"error_rate > 2%": "good", "p99_latency > 2x": "good"}),
        (group(60, 2, 400.0), {"error_rate > 2%": "suspected", "p99_latency > 2x": "good"}),
        (group(500, 100, 2000.0), {"error_rate > 2%": "proven", "p99_latency > 2x": "proven"}),
    ],
)
def test_each_condition_reports_its_state(candidate: object, expected: dict[str, str]) -> None:
    evidence = TrialEvidence(candidate, group(3000, 3, 400.0), NOW_UNIX_S)  # type: ignore[arg-type]
    figures = figures_of(rollout(), evidence, NOW_UNIX_S)
    assert moods(figures) == expected
    assert figures.why == evaluate(rollout(), evidence, Residency(), NOW_UNIX_S).reason


def test_unmeasured_figures_are_none_and_measured_ones_are_compared() -> None:
    evidence = TrialEvidence(group(60, 0, 800.0), group(0, 0, 0.0), NOW_UNIX_S)
    rows = {row.name: row for row in figures_of(rollout(), evidence, NOW_UNIX_S).rows}
    assert (rows["failed"].control, rows["failed"].candidate) == (None, 0.0)
    assert rows["whole answer p99"].control is None
    assert rows["whole answer p99"].factor is None
    both = TrialEvidence(group(60, 0, 800.0), group(60, 0, 400.0), NOW_UNIX_S)
    p99 = next(row for row in figures_of(rollout(), both, NOW_UNIX_S).rows if row.name == "whole answer p99")
    assert p99.factor == pytest.approx(2.0, rel=0.03)


@pytest.mark.parametrize("changes", [{"state": "loading", "loaded": False}, {"state": "rolled_back"}])
def test_inactive_rollout_reports_no_conditions(changes: dict[str, object]) -> None:
    it = rollout(reason="the reason", **changes)
    figures = figures_of(it, TrialEvidence(), NOW_UNIX_S)
    assert (figures.conditions, figures.why) == ((), "the reason")
