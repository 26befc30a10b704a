"""RolloutEvidence: what counts, in which group, and what is reported when."""

import msgspec
import pytest

from functions.api.ids import ModelId, ReplicaId, RolloutId, TenantId
from functions.decisions.quantile_sketch import FIRST_BUCKET, LAST_BUCKET
from functions.decisions.rollout.evidence import GroupStats
from functions.decisions.rollout.losses import BURST_S
from functions.decisions.routing.retry import AttemptFailure
from functions.fleet.rollout_heartbeat import (
    HEARTBEAT_MAX_BYTES,
    MAX_STAGES_PER_HEARTBEAT,
    RolloutHeartbeat,
    decode,
    encode,
)
from functions.gateway.request.request import Timeline
from functions.gateway.routing import rollout as evidence_module
from functions.gateway.routing.rollout import FORGET_AFTER_S, WHOLE_EVERY_S, Attempted, RolloutEvidence
from functions.gateway.routing.splits import SplitUse
from functions.telemetry.gap_histogram import GapCounts, Gaps
from tests.gateway import rig
from tests.gateway.rig import NOW_UNIX_S, ROLLOUT, Clock

RESOLVED = rig.catalogue().resolve(TenantId("acme"), "acme/bot")
assert RESOLVED is not None
ACME = TenantId("acme")
USE = SplitUse(ROLLOUT, 0, ModelId("acme/bot"), "candidate", RESOLVED)
CONTROL = msgspec.structs.replace(USE, group="control")
ANSWERED = Timeline(received_s=10.0, first_token_s=10.1, ended_s=10.5)
NEVER_BEGAN = Timeline(received_s=10.0, ended_s=10.5)


def gathering(clock: Clock | None = None) -> RolloutEvidence:
    return RolloutEvidence("gw-1", 7, clock or Clock(), lambda: NOW_UNIX_S, lambda replica_id: float("-inf"))


def gaps_of(*gaps_s: float) -> GapCounts:
    gaps = Gaps()
    for gap_s in gaps_s:
        gaps.add(gap_s)
    return gaps.between_tokens(len(gaps_s) + 1)


def groups(evidence: RolloutEvidence, stage: int = 0) -> tuple[GroupStats, GroupStats]:
    found = evidence.stats(ROLLOUT, stage)
    assert found is not None
    return found


def counts(stats: GroupStats) -> tuple[int, int]:
    return stats.requests, stats.errors


def test_answer_counts_as_request_with_three_latencies() -> None:
    evidence = gathering()
    evidence.ended(USE, ACME, (200, ""), ANSWERED, token_gaps=gaps_of(0.1))
    candidate, control = groups(evidence)
    assert counts(candidate) == (1, 0) and counts(control) == (0, 0)
    times = [sketch.quantile(0.5) for sketch in (candidate.ttft_ms, candidate.total_ms, candidate.inter_token_ms)]
    assert times == [pytest.approx(100, rel=0.01), pytest.approx(500, rel=0.01), pytest.approx(100, rel=0.13)]


def test_answer_in_one_piece_has_no_inter_token_time() -> None:
    evidence = gathering()
    evidence.ended(USE, ACME, (200, ""), ANSWERED)
    assert groups(evidence)[0].inter_token_ms.count == 0


def test_evidence_by_status() -> None:
    evidence = gathering()
    for status, code in ((200, ""), (200, ""), (502, "upstream_failed"), (499, ""), (404, "x"), (503, "no_capacity")):
        evidence.ended(USE, ACME, (status, code), NEVER_BEGAN)
    assert counts(groups(evidence)[0]) == (3, 1)


@pytest.mark.parametrize(
    ("status", "code", "candidate", "control"),
    [
        (400, "context_length_exceeded", None, None),
        (429, "rate_limit_exceeded", None, None),
        (499, "", None, None),
        (500, "internal_error", 1, 1),
        (502, "upstream_lost", 1, 1),
        (503, "no_capacity", None, None),
        (503, "overloaded", None, None),
        (503, "restarting", None, None),
        (503, "model_not_ready", 1, None),  # a candidate that no replica has is the candidate's fault
        (503, "model_unavailable", 1, 1),
        (504, "deadline_exceeded", 1, 1),
    ],
)
def test_errors_by_status_and_code(status: int, code: str, candidate: int | None, control: int | None) -> None:
    for use, errors, which in ((USE, candidate, 0), (CONTROL, control, 1)):
        evidence = gathering()
        evidence.ended(use, ACME, (status, code), NEVER_BEGAN)
        if errors is None:
            assert evidence.stats(ROLLOUT, 0) is None and evidence.heartbeats() == []
        else:
            assert counts(groups(evidence)[which]) == (1, errors)


def test_broken_stream_has_ttft_but_no_total_time() -> None:
    evidence = gathering()
    evidence.ended(USE, ACME, (502, "upstream_lost"), ANSWERED, token_gaps=gaps_of(0.1))
    candidate, _ = groups(evidence)
    assert [it.count for it in (candidate.ttft_ms, candidate.total_ms, candidate.inter_token_ms)] == [1, 0, 0]


def broke_at(replica_id: str, sent_s: float) -> Attempted:
    return Attempted(ReplicaId(replica_id), sent_s, AttemptFailure.RESET)


def test_lost_replica_is_one_failure_in_each_group() -> None:
    """Otherwise a burst would raise the control's error bound and hide the candidate's failures."""
    clock = Clock()
    evidence = gathering(clock)
    for use in (USE, *[CONTROL] * 30):
        evidence.ended(use, ACME, (502, "upstream_lost"), ANSWERED, attempted=broke_at("r0", clock.now_s - 1))
    clock.forward(BURST_S)
    evidence.heartbeats()
    candidate, control = groups(evidence)
    assert counts(candidate) == counts(control) == (1, 1), "of each group one"
    assert control.ttft_ms.count == 1


def test_engine_errors_each_count_as_failure() -> None:
    evidence = gathering()
    for _ in range(5):
        said_so = Attempted(ReplicaId("r0"), 0.0, AttemptFailure.ENGINE_ERROR)
        evidence.ended(USE, ACME, (502, "upstream_failed"), ANSWERED, attempted=said_so)
    assert counts(groups(evidence)[0]) == (5, 5)


def test_failures_count_each_if_the_replica_still_streams() -> None:
    clock = Clock()
    evidence = RolloutEvidence("gw-1", 7, clock, lambda: NOW_UNIX_S, lambda replica_id: clock.now_s - 0.1)
    for _ in range(5):
        evidence.ended(USE, ACME, (502, "upstream_lost"), ANSWERED, attempted=broke_at("r0", clock.now_s - 1))
    assert counts(groups(evidence)[0]) == (1, 1), "not known yet"
    evidence.heartbeats()
    clock.forward(BURST_S)
    (heartbeat,) = evidence.heartbeats()
    assert (heartbeat.rollouts[0].candidate.requests, heartbeat.rollouts[0].candidate.errors) == (5, 5)


def test_candidate_that_only_failed_is_blamed_for_missing_replicas() -> None:
    """Otherwise a base whose engine dies of its first requests would show only one loss a minute."""
    clock = Clock()
    evidence = gathering(clock)
    of_base = msgspec.structs.replace(USE, model=ModelId(rig.POOL))
    evidence.candidate_unavailable(of_base, ACME)
    assert evidence.stats(ROLLOUT, 0) is None, "nobody has asked it yet"
    evidence.candidate_failed(of_base, ACME, broke_at("r0", 0.0))
    evidence.candidate_unavailable(of_base, ACME)
    assert counts(groups(evidence)[0]) == (1, 1), "once says nothing"
    clock.forward(60)
    evidence.candidate_failed(of_base, ACME, broke_at("r0", clock.now_s - 1))
    evidence.candidate_unavailable(of_base, ACME)
    evidence.ended(of_base, ACME, (503, "model_not_ready"), NEVER_BEGAN)
    assert counts(groups(evidence)[0]) == (4, 4)
    evidence.ended(of_base, ACME, (200, ""), ANSWERED)
    evidence.candidate_unavailable(of_base, ACME)
    evidence.ended(of_base, ACME, (503, "model_not_ready"), NEVER_BEGAN)
    assert counts(groups(evidence)[0]) == (5, 4), "it answers: whoever had it was lost"


def test_unavailable_candidate_is_an_error_without_latencies() -> None:
    evidence = gathering()
    evidence.candidate_unavailable(USE, ACME)
    assert counts(groups(evidence)[0]) == (1, 1) and counts(groups(evidence)[1]) == (0, 0)


def test_heartbeats_report_changes_and_periodically_everything() -> None:
    clock = Clock()
    evidence = gathering(clock)
    assert evidence.heartbeats() == [], "without a rollout there is nothing to say"
    evidence.ended(USE, ACME, (200, ""), ANSWERED)
    evidence.ended(msgspec.structs.replace(USE, stage=1), ACME, (200, ""), ANSWERED)
    assert stages(evidence) == [[0, 1]]
    clock.forward(1)
    assert stages(evidence) == [[]], "still here"
    evidence.ended(USE, ACME, (200, ""), ANSWERED)
    clock.forward(1)
    assert stages(evidence) == [[0]]
    clock.forward(WHOLE_EVERY_S)
    assert stages(evidence) == [[1, 0]]
    evidence.resend_all()
    assert stages(evidence) == [[1, 0]]


def test_heartbeats_are_numbered_and_cumulative() -> None:
    evidence = gathering()
    said: list[RolloutHeartbeat] = []
    for _ in range(3):
        evidence.ended(USE, ACME, (200, ""), ANSWERED)
        said += evidence.heartbeats()
    assert [(beat.sequence, beat.rollouts[0].candidate.requests) for beat in said] == [(1, 1), (2, 2), (3, 3)]
    assert {(beat.gateway_id, beat.incarnation, beat.sent_unix_s) for beat in said} == {("gw-1", 7, NOW_UNIX_S)}
    assert [decode(encode(beat)) for beat in said] == said


def test_many_stages_are_split_into_bounded_heartbeats() -> None:
    evidence = gathering()
    for number in range(MAX_STAGES_PER_HEARTBEAT + 3):
        evidence.ended(msgspec.structs.replace(USE, stage=number), ACME, (200, ""), ANSWERED)
    assert [len(part) for part in stages(evidence)] == [MAX_STAGES_PER_HEARTBEAT, 3]
    for number in range(12):  # the largest possible stages
        heavy = gathered_everywhere(evidence, stage=1000 + number)
        assert heavy.requests > 0
    beats = evidence.heartbeats()
    assert sum(len(beat.rollouts) for beat in beats) == 12 and len(beats) > 1
    assert max(len(encode(beat)) for beat in beats) < HEARTBEAT_MAX_BYTES


def gathered_everywhere(evidence: RolloutEvidence, stage: int) -> GroupStats:
    """Fill a stage so that every bucket of every sketch has a count."""
    use = msgspec.structs.replace(USE, stage=stage)
    evidence.ended(use, ACME, (200, ""), ANSWERED, token_gaps=gaps_of(0.4))
    for stats in groups(evidence, stage):
        stats.requests = LAST_BUCKET - FIRST_BUCKET + 10
        for sketch in (stats.ttft_ms, stats.total_ms, stats.inter_token_ms):
            for bucket in range(FIRST_BUCKET, LAST_BUCKET + 1):
                sketch._buckets[bucket] = sketch._buckets.get(bucket, 0) + 1
                sketch.count += 1
    return groups(evidence, stage)[0]


def test_passed_stage_is_forgotten_after_a_while_but_a_quiet_one_is_kept() -> None:
    clock = Clock()
    evidence = gathering(clock)
    for stage in (0, 1):
        evidence.ended(msgspec.structs.replace(USE, stage=stage), ACME, (200, ""), ANSWERED)
    clock.forward(FORGET_AFTER_S - 1)
    evidence.forget_passed(lambda rollout, model, stage: stage == 0)
    assert evidence.stats(ROLLOUT, 1) is not None
    clock.forward(2)
    evidence.forget_passed(lambda rollout, model, stage: (rollout, model, stage) == (ROLLOUT, "acme/bot", 0))
    assert evidence.stats(ROLLOUT, 1) is None and evidence.stats(ROLLOUT, 0) is not None


def test_quiet_stage_that_passed_waits_for_its_last_requests() -> None:
    """A stream may take 600 s: its end must add to the old counts, not start new ones."""
    clock = Clock()
    evidence = gathering(clock)
    evidence.ended(USE, ACME, (200, ""), ANSWERED)
    for _ in range(10_000):
        clock.forward(1)
        evidence.forget_passed(lambda rollout, model, stage: True)
    for _ in range(700):
        clock.forward(1)
        evidence.forget_passed(lambda rollout, model, stage: False)
    evidence.ended(USE, ACME, (200, ""), ANSWERED)
    assert groups(evidence)[0].requests + groups(evidence)[1].requests == 2


def test_stages_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence_module, "MAX_STAGES", 2)
    evidence = gathering()
    for number in range(4):
        use = msgspec.structs.replace(USE, rollout=RolloutId(f"ro-{number:08}"))
        evidence.ended(use, ACME, (200, ""), ANSWERED)
    assert [evidence.stats(RolloutId(f"ro-{number:08}"), 0) is None for number in range(4)] == [
        True,
        True,
        False,
        False,
    ]


def stages(evidence: RolloutEvidence) -> list[list[int]]:
    return [[said.stage for said in beat.rollouts] for beat in evidence.heartbeats()]


def counted(evidence: RolloutEvidence, *sent: tuple[str, int, int]) -> tuple[int, int]:
    """Return the candidate's requests and errors after so many requests of these tenants with these statuses."""
    for tenant, requests, status in sent:
        for _ in range(requests):
            evidence.ended(USE, TenantId(tenant), (status, ""), ANSWERED)
    return counts(groups(evidence)[0])


def test_one_tenants_share_is_capped() -> None:
    assert counted(gathering(), ("globex", 50, 200), ("acme", 1000, 502)) == (200, 150)
    assert counted(gathering(), ("globex", 500, 200), ("acme", 400, 502)) == (900, 400), "no more than the others"


def test_sole_tenant_of_a_model_is_not_capped() -> None:
    evidence = gathering()
    assert counted(evidence, ("acme", 400, 200)) == (400, 0)
    evidence.ended(CONTROL, TenantId("globex"), (200, ""), ANSWERED)  # another tenant, in the other group
    assert counted(evidence, ("acme", 10, 502)) == (400, 0)
    evidence.candidate_unavailable(USE, ACME)
    assert counts(groups(evidence)[0]) == (400, 0)


def test_time_of_a_paused_client_is_not_latency() -> None:
    evidence = gathering()
    slow = Timeline(received_s=10.0, first_token_s=10.1, ended_s=30.5, paused_s=20.0)
    evidence.ended(USE, ACME, (200, ""), slow)
    assert groups(evidence)[0].total_ms.quantile(0.5) == pytest.approx(500, rel=0.01)
