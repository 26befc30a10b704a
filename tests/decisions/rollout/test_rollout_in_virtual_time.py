"""Whole rollouts in virtual time (`loadtests.rollouts`): how often a good version is halted, and that bad ones are.

`python -m loadtests.rollouts` measures the rates over many rollouts; these tests run as many as their time allows.
"""

import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from functions.api.kinds.rollout_policy import RolloutPolicy
from functions.api.loader import load_texts
from functions.controller.snapshot.compile_policies import rollout_entry
from functions.decisions.catalogue_policies import DEFAULT_ROLLOUT
from loadtests.rollouts.virtual import Behaviour, Outcome, VirtualRollout, policy

SAME = Behaviour()
STAGE_S = 20.0


def rolled_out(seed: int, candidate: Behaviour, control: Behaviour = SAME, rate: float = 40.0) -> Outcome:
    rules = policy(STAGE_S, min_requests=10, false_alarm_ratio=0.01)
    return VirtualRollout(random.Random(seed), rules, control, candidate, rate).run(at_most_s=400.0)


@pytest.mark.soak
def test_versions_that_are_equal_are_not_halted() -> None:
    """40 rollouts at a declared rate of 1 %: more than two halts would occur once in two hundred runs. Seeds are
    fixed.
    """
    states = Counter(rolled_out(seed, SAME).state for seed in range(40))
    assert states["rolled_back"] <= 2
    assert states["completed"] >= 35


def test_equally_failing_versions_are_held_and_not_halted() -> None:
    failing = replace(SAME, error_ratio=0.10)
    states = Counter(rolled_out(seed, failing, failing).state for seed in range(2))
    assert states == {"running": 2}, "held: the old version misses the limit as well"


@pytest.mark.parametrize(
    ("candidate", "latest_stage"),
    [
        (replace(SAME, error_ratio=1.0), 0),
        (replace(SAME, error_ratio=0.3), 1),
        (replace(SAME, error_ratio=0.05), 2),
        (replace(SAME, slower=2.0), 1),
    ],
    ids=["dead", "30 % errors", "5 % errors", "2x slower"],
)
def test_worse_versions_never_complete(candidate: Behaviour, latest_stage: int) -> None:
    outcomes = [rolled_out(seed, candidate, rate=100.0) for seed in range(4)]
    assert {outcome.state for outcome in outcomes} <= {"rolled_back", "running"}, "held, where it is not halted"
    halted = [outcome for outcome in outcomes if outcome.state == "rolled_back"]
    assert len(halted) >= 3
    assert max(outcome.stage for outcome in halted) <= latest_stage


def test_the_demos_default_policy_is_the_built_in_one() -> None:
    file = Path(__file__).parents[3] / "policies" / "rollouts.yaml"
    loaded = load_texts([("policies/rollouts.yaml", file.read_bytes())])
    entries = {
        declared.value.metadata.name: rollout_entry(declared.value) for declared in loaded.objects_of(RolloutPolicy)
    }
    assert entries["default"] == DEFAULT_ROLLOUT
    assert [stage.percent for stage in entries["at-once"].stages] == [100]
