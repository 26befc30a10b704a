"""What people see of a rollout's evidence is what decides: the same sketches, the same evaluation."""

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
def test_each_condition_says_how_near_it_is(candidate: object, expected: dict[str, str]) -> None:
    evidence = TrialEvidence(candidate, group(3000, 3, 400.0), NOW_UNIX_S)  # type: ignore[arg-type]
    figures = figures_of(rollout(), evidence, NOW_UNIX_S)
    assert moods(figures) == expected
    assert figures.why == evaluate(rollout(), evidence, Residency(), NOW_UNIX_S).reason


def test_what_was_not_measured_is_none_and_what_was_is_compared() -> None:
    evidence = TrialEvidence(group(60, 0, 800.0), group(0, 0, 0.0), NOW_UNIX_S)
    rows = {row.name: row for row in figures_of(rollout(), evidence, NOW_UNIX_S).rows}
    assert (rows["failed"].control, rows["failed"].candidate) == (None, 0.0)
    assert rows["whole answer p99"].control is None
    assert rows["whole answer p99"].factor is None
    both = TrialEvidence(group(60, 0, 800.0), group(60, 0, 400.0), NOW_UNIX_S)
    p99 = next(row for row in figures_of(rollout(), both, NOW_UNIX_S).rows if row.name == "whole answer p99")
    assert p99.factor == pytest.approx(2.0, rel=0.03)


@pytest.mark.parametrize("changes", [{"state": "loading", "loaded": False}, {"state": "rolled_back"}])
def test_what_serves_nobody_is_judged_by_nothing(changes: dict[str, object]) -> None:
    it = rollout(reason="the reason", **changes)
    figures = figures_of(it, TrialEvidence(), NOW_UNIX_S)
    assert (figures.conditions, figures.why) == ((), "the reason")
