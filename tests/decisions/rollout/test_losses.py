"""Losses: failures at one replica count once if the replica was lost, and each time if it is alive."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from functions.api.ids import ReplicaId
from functions.decisions.rollout import losses as losses_module
from functions.decisions.rollout.evaluation import evaluate
from functions.decisions.rollout.evidence import TrialEvidence
from functions.decisions.rollout.losses import BURST_S, DYING_S, FORGET_AFTER_S, MAX_UNDECIDED, Losses
from tests.decisions.rollout.rollouts import Traffic, evidence, running
from tests.decisions.rollout.test_rollout_evaluation import EVERYWHERE

R0, R1 = ReplicaId("r0"), ReplicaId("r1")
NEVER_S = float("-inf")


class Told:
    """Losses of one or two replicas, and the failures counted for them."""

    def __init__(self) -> None:
        self.losses: Losses[str, int] = Losses()
        self.now_s, self.heard_s = 10.0, NEVER_S
        self.counted: list[tuple[str, int]] = []

    def fails(
        self, times: int = 1, replica: ReplicaId = R0, group: str = "new", sent_s: float = 0.0, *, begun: bool = True
    ) -> None:
        for number in range(times):
            self.collect_decided()
            self.counted += self.losses.failed(replica, sent_s, group, number, self.now_s, begun=begun)

    def answers(self, replica: ReplicaId = R0, sent_s: float = 0.0) -> None:
        self.counted += self.losses.answered(replica, sent_s, self.now_s)

    def collect_decided(self) -> None:
        self.counted += self.losses.collect_decided(self.now_s, lambda _: self.heard_s)

    def after(self, seconds: float) -> None:
        self.now_s += seconds
        self.collect_decided()


def test_worked_example_of_the_prologue() -> None:
    told = Told()
    told.fails(12)
    told.after(BURST_S)
    assert len(told.counted) == 1
    told = Told()
    told.fails(2)
    told.after(0.3)
    for _ in range(8):
        told.answers()
    told.after(BURST_S)
    assert len(told.counted) == 2


def test_each_group_and_replica_counts_its_own_failure() -> None:
    told = Told()
    for replica in (R0, R1):
        for group in ("new", "old"):
            told.fails(5, replica, group)
    told.after(BURST_S)
    assert len(told.counted) == 4


def test_answer_in_transit_does_not_prove_the_replica_alive() -> None:
    told = Told()
    told.fails(5)
    told.after(DYING_S / 2)
    told.answers()
    told.fails(5)
    told.after(BURST_S)
    assert len(told.counted) == 1


def test_stream_started_after_the_first_failure_proves_the_replica_alive() -> None:
    """An engine that breaks every stream it starts fails each time; a refusal proves nothing."""
    for begun, counted in ((True, 3), (False, 1)):
        told = Told()
        told.fails()
        for _ in range(2):
            told.after(0.1)
            told.fails(sent_s=told.now_s - 0.05, begun=begun)
        assert len(told.counted) == counted
    told = Told()
    told.fails(3)
    told.after(0.05)
    told.answers(sent_s=told.now_s - 0.01)
    assert len(told.counted) == 3


def test_continuing_streams_prove_the_replica_alive() -> None:
    for heard_after_s, counted in ((0.1, 1), (0.9, 5)):
        told = Told()
        told.fails(5)
        told.heard_s = told.now_s + heard_after_s
        told.after(BURST_S)
        assert len(told.counted) == counted


def test_late_failure_of_a_request_sent_before_the_loss_belongs_to_it() -> None:
    """The replica's node is gone: streams fail after 30 s of silence, and first bytes time out after 60 s."""
    told = Told()
    told.fails(3, sent_s=9.0)
    told.after(30.0)
    told.fails(3, sent_s=9.5)
    assert len(told.counted) == 1
    told.fails(1, sent_s=41.0, begun=False)
    assert len(told.counted) == 2, "it was believed back, and was lost again"


def test_live_replica_counts_later_failures() -> None:
    told = Told()
    told.fails()
    told.heard_s = told.now_s + 0.9
    told.after(BURST_S)
    told.fails(sent_s=5.0)
    assert len(told.counted) == 2


def test_remembered_losses_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(losses_module, "MAX_LOST", 3)
    told = Told()
    for number in range(5):
        told.fails(1, ReplicaId(f"r{number}"))
    assert len(told.losses) == 3
    told.fails(MAX_UNDECIDED + 10, ReplicaId("r4"))
    told.heard_s = told.now_s + BURST_S
    told.after(BURST_S)
    assert len(told.counted) == 5 + MAX_UNDECIDED
    told.fails()
    told.heard_s = NEVER_S
    told.after(FORGET_AFTER_S)
    assert len(told.losses) == 0


@given(st.lists(st.tuples(st.sampled_from("fax"), st.floats(0.0, 0.7)), max_size=40))
def test_counted_failures_are_between_one_and_all(steps: list[tuple[str, float]]) -> None:
    """f: a request fails; a: another is answered whole; x: only bytes arrive."""
    told, failed = Told(), 0
    for what, seconds in steps:
        told.after(seconds)
        if what == "f":
            told.fails(sent_s=told.now_s - 0.1)
            failed += 1
        elif what == "a":
            told.answers()
        else:
            told.heard_s = told.now_s
    told.after(BURST_S)
    assert min(1, failed) <= len(told.counted) <= failed


# evidence of losses


def with_losses(lost: int, good_between: int) -> TrialEvidence:
    """Return evidence of `lost` losses with `good_between` answers before each."""
    seen = evidence((lost * good_between, Traffic()), (5000, Traffic()), 69.0)
    seen.candidate.requests += lost
    seen.candidate.errors += lost
    return seen


def losses_that_halt(good_between: int) -> int:
    return next(
        lost
        for lost in range(1, 100)
        if evaluate(running(), with_losses(lost, good_between), EVERYWHERE, 2.0).kind == "halt"
    )


@pytest.mark.parametrize(("good_between", "lost"), [(0, 3), (1, 4), (3, 6), (5, 7), (10, 12)])
def test_version_that_crashes_engines_is_halted_after_some_losses(good_between: int, lost: int) -> None:
    """The conditions of `CAREFUL`: 2 %, a weight of 1,200."""
    assert losses_that_halt(good_between) == lost


def test_single_loss_neither_halts_nor_blocks_a_stage() -> None:
    for requests, kind in ((5, "hold"), (30, "hold"), (50, "advance")):
        assert evaluate(running(), with_losses(1, requests), EVERYWHERE, 70.0).kind == kind


def test_version_that_breaks_a_fifth_of_its_streams_is_detected() -> None:
    """100 streams a second of 0.3 s each; a fifth breaks after 0.06 s. After a failure the gateway ejects the replica
    for 5 s, so only running streams show that it is alive.
    """
    rng, told, failed, out_until_s = random.Random(5), Told(), 0, 0.0
    under_way: list[tuple[float, float, bool]] = []  # end time, send time, whether it breaks
    for hundredth in range(20 * 100):
        told.now_s = 10.0 + hundredth / 100
        told.collect_decided()
        if told.now_s >= out_until_s:
            breaks = rng.random() < 0.2
            under_way.append((told.now_s + (0.06 if breaks else 0.3), told.now_s, breaks))
        for _, sent_s, breaks in [each for each in under_way if each[0] <= told.now_s]:
            if breaks:
                told.fails(sent_s=sent_s)
                failed, out_until_s = failed + 1, told.now_s + 5.0
            else:
                told.answers(sent_s=sent_s)
        under_way = [each for each in under_way if each[0] > told.now_s]
    told.after(BURST_S)
    assert failed > 5 and len(told.counted) == failed
