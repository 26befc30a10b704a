"""Evaluation of a rollout: it advances on enough good evidence, halts on proof, and otherwise holds."""

import random
from dataclasses import dataclass

import pytest

from functions.decisions.rollout.evaluation import Residency, RolloutTimeouts, RolloutVerdict, alpha_of, evaluate
from functions.decisions.rollout.events import Breached, LoadFailed, Paused, StagePassed, VersionLoaded
from functions.decisions.rollout.evidence import TrialEvidence
from functions.decisions.rollout.lifecycle import Rollout, transition
from tests.decisions.rollout.rollouts import AT_ONCE, CAREFUL, Traffic, evidence, rollout, running

NOWHERE = Residency()
EVERYWHERE = Residency(ready=3, with_control=3, with_candidate=3, with_both=3)
OVER = 61.0  # a stage lasts 60 s and began at 1 s


def judged(
    row: Rollout, seen: TrialEvidence, now_unix_s: float = OVER + 1, where: Residency = EVERYWHERE
) -> RolloutVerdict:
    return evaluate(row, seen, where, now_unix_s)


def good(candidate: int = 100, control: int = 5000, heard_unix_s: float | None = OVER) -> TrialEvidence:
    seeds = [Traffic(rng=random.Random(seed)) for seed in (1, 2)]
    return evidence((candidate, seeds[0]), (control, seeds[1]), heard_unix_s)


def bad(candidate: int, error_ratio: float) -> TrialEvidence:
    worse = Traffic(error_ratio=error_ratio, rng=random.Random(3))
    return evidence((candidate, worse), (5000, Traffic()), OVER)


def test_a_stage_passes_when_it_has_lasted_on_enough_good_evidence() -> None:
    verdict = judged(running(), good())
    assert (verdict.kind, verdict.event) == ("advance", StagePassed())


@pytest.mark.parametrize(
    ("seen", "now_unix_s", "why"),
    [
        (TrialEvidence(), OVER + 1, "no gateway has reported yet"),
        (good(heard_unix_s=OVER), OVER + 46, "no report for 46 s"),
        (good(candidate=49), OVER + 1, "49 of 50 requests of v2"),
        (good(), 31.0, "no problems, 30 s of 60 s"),
        (good(control=3), OVER + 1, "3 of 20 measured requests of the old version"),
        (bad(60, 0.03), OVER + 1, "error_rate > 2%"),
    ],
    ids=["nothing-heard", "silence", "too-few", "too-early", "no-control", "suspected"],
)
def test_holds_stage_when_evidence_is_missing(seen: TrialEvidence, now_unix_s: float, why: str) -> None:
    verdict = judged(running(), seen, now_unix_s)
    assert (verdict.kind, verdict.event) == ("hold", None)
    assert why in verdict.reason
    assert verdict.reason.startswith("stage 1 of 4 (1%)")


def test_a_small_stage_neither_halts_on_noise_nor_passes_on_silence() -> None:
    """60 requests with 2 errors: above 2 % as a plain ratio, but no proof."""
    noisy = good(candidate=60)
    noisy.candidate.errors = 2
    assert judged(running(), noisy).kind == "hold"
    assert judged(running(), good(candidate=10)).kind == "hold"


def test_proof_halts_at_once_at_any_time_and_age_of_evidence() -> None:
    for now_unix_s in (2.0, OVER, 10_000.0):
        verdict = judged(running(), bad(400, 0.3), now_unix_s)
        assert verdict.kind == "halt"
        assert isinstance(verdict.event, Breached)
        assert verdict.event.reason.startswith("stage 1 of 4 (1%): error_rate > 2%: 28.25% against 0.00%")
        assert "1200 halts" in verdict.event.reason


def test_pause_stops_advances_and_not_halts() -> None:
    paused = rollout(VersionLoaded(), Paused("ada"))
    assert judged(paused, good()).kind == "hold"
    assert judged(paused, bad(400, 0.3)).kind == "halt"


def test_ended_or_unloaded_rollout_is_held() -> None:
    for row in (
        rollout(Paused("ada")),
        rollout(VersionLoaded(), Breached("bad")),
        rollout(VersionLoaded(), policy=AT_ONCE),
    ):
        assert judged(row, bad(400, 0.9)).kind == "hold"


def test_the_rate_is_shared_by_all_conditions() -> None:
    assert alpha_of(running()) == pytest.approx(0.01 / 6)
    assert alpha_of(running(policy=AT_ONCE)) == pytest.approx(0.01)
    assert sum(len(stage.auto_halt) for stage in CAREFUL.stages) == 6


@dataclass(frozen=True)
class Load:
    ready: int
    control: int
    candidate: int
    both: int
    refusing: int = 0


@pytest.mark.parametrize(
    ("load", "kind"),
    [
        (Load(3, 3, 3, 3), "loaded"),
        (Load(3, 3, 2, 2), "hold"),  # one replica with the old version lacks the new one
        (Load(4, 2, 2, 2), "loaded"),
        (Load(4, 1, 1, 1), "hold"),  # not on half of them
        (Load(4, 0, 2, 0), "loaded"),  # no replica has the old version: no share to match
        (Load(0, 0, 0, 0), "hold"),
        (Load(3, 3, 0, 0, refusing=3), "load_failed"),
        (Load(3, 3, 0, 0, refusing=2), "hold"),
        (Load(3, 3, 1, 1, refusing=2), "hold"),
    ],
)
def test_loading_ends_once_the_candidate_is_where_the_control_is(load: Load, kind: str) -> None:
    where = Residency(load.ready, load.control, load.candidate, load.both, load.refusing, "wrong rank")
    verdict = evaluate(rollout(), TrialEvidence(), where, 30.0)
    assert verdict.kind == kind
    assert isinstance(verdict.event, {"loaded": VersionLoaded, "hold": type(None), "load_failed": LoadFailed}[kind])


def test_refused_load_fails_after_its_patience() -> None:
    refused = Residency(ready=2, with_control=2, refusing=2, refusal="the store is away")
    assert evaluate(rollout(), TrialEvidence(), refused, 19.0).kind == "hold"
    verdict = evaluate(rollout(), TrialEvidence(), refused, 20.0)
    assert verdict.event == LoadFailed("no replica can load v2: the store is away")
    assert evaluate(rollout(), TrialEvidence(), refused, 20.0, RolloutTimeouts(patience_s=60.0)).kind == "hold"


def test_loading_fails_at_its_deadline_if_replicas_could_load() -> None:
    slow = Residency(ready=2, with_control=2, with_candidate=1, with_both=1)
    assert evaluate(rollout(), TrialEvidence(), slow, 599.0).kind == "hold"
    assert evaluate(rollout(), TrialEvidence(), slow, 600.0).kind == "load_failed"
    assert evaluate(rollout(), TrialEvidence(), NOWHERE, 6000.0).kind == "hold"


def test_loading_deadline_counts_from_the_pools_wake_up() -> None:
    """Otherwise a version pushed while the pool sleeps is rolled back in the first evaluation after it wakes."""
    woken = Residency(ready=1, with_control=1, since_unix_s=5990.0)
    assert evaluate(rollout(), TrialEvidence(), woken, 6000.0).kind == "hold"
    assert evaluate(rollout(), TrialEvidence(), woken, 6590.0).kind == "load_failed"


def test_good_rollout_completes_by_itself() -> None:
    row, now_unix_s, kinds = rollout(), 0.0, []
    while row.is_active:
        now_unix_s += 1.0
        verdict = evaluate(row, good(heard_unix_s=now_unix_s), EVERYWHERE, now_unix_s)
        if verdict.event is not None:
            kinds.append(verdict.kind)
            row = transition(row, verdict.event, now_unix_s)
    assert kinds == ["loaded", "advance", "advance", "advance"]
    assert row.state == "completed"
    assert now_unix_s == 181.0
