"""Circuit breaker of one replica: ejections, faults, probation with one probe, refusals and reset."""

from hypothesis import given
from hypothesis import strategies as st

from functions.decisions.health.ejection import (
    EJECTION_BASE_S,
    EJECTION_CAP_S,
    FAULTS_MAX,
    FORGET_AFTER_S,
    PROBE_S,
    REFUSAL_MS,
    REFUSAL_S,
    Breaker,
)


def test_worked_example_from_the_prologue() -> None:
    breaker = Breaker()
    assert breaker.eject(0.0) == 5.0
    assert breaker.is_out(4.9) and not breaker.is_out(5.0)
    breaker.sent(5.0)
    assert breaker.is_out(6.0), "one probe at a time"
    assert breaker.eject(7.0) == 10.0
    assert breaker.is_out(16.9) and not breaker.is_out(17.0)
    breaker.sent(17.0)
    breaker.answered(17.0, 18.0)
    assert not breaker.is_out(18.0)
    breaker.sent(18.5)
    assert not breaker.is_out(18.6), "no longer on probation"


def test_ejections_double_up_to_a_cap() -> None:
    breaker, now_s, durations_s = Breaker(), 0.0, []
    for _ in range(6):
        durations_s.append(breaker.eject(now_s))
        now_s += durations_s[-1]
    assert durations_s == [5.0, 10.0, 20.0, 40.0, EJECTION_CAP_S, EJECTION_CAP_S]


def test_more_evidence_during_an_ejection_does_not_lengthen_it() -> None:
    breaker = Breaker()
    breaker.eject(0.0)
    assert breaker.eject(1.0) == EJECTION_BASE_S - 1.0


def test_answer_to_a_request_before_the_ejection_is_ignored() -> None:
    breaker = Breaker()
    breaker.eject(10.0)
    breaker.answered(9.0, 11.0)
    assert breaker.is_out(11.0)
    breaker.answered(10.5, 12.0)
    assert not breaker.is_out(12.0)


def test_a_flapping_replica_is_out_for_longer_each_time() -> None:
    breaker, now_s, durations_s = Breaker(), 0.0, []
    for _ in range(4):
        durations_s.append(breaker.eject(now_s))
        now_s += durations_s[-1]
        breaker.sent(now_s)
        breaker.answered(now_s, now_s + 1.0)
        now_s += 3.0
    assert durations_s == [5.0, 10.0, 20.0, 40.0]


def test_past_ejections_expire_after_a_healthy_period() -> None:
    breaker = Breaker()
    breaker.eject(0.0)
    breaker.answered(5.0, 6.0)
    assert not breaker.is_forgotten(6.0)
    assert breaker.is_forgotten(6.0 + FORGET_AFTER_S)
    assert breaker.eject(6.0 + FORGET_AFTER_S) == EJECTION_BASE_S


def test_a_probe_that_is_never_answered_is_followed_by_another() -> None:
    breaker = Breaker()
    breaker.eject(0.0)
    breaker.sent(5.0)
    assert breaker.is_out(5.0 + PROBE_S - 0.1) and not breaker.is_out(5.0 + PROBE_S)


def test_faults_eject_only_in_a_row_but_a_probes_fault_at_once() -> None:
    breaker = Breaker()
    for _ in range(FAULTS_MAX - 1):
        assert breaker.record_fault(0.0) == 0.0
    breaker.answered(0.0, 0.0)
    for _ in range(FAULTS_MAX - 1):
        assert breaker.record_fault(1.0) == 0.0
    assert breaker.record_fault(1.0) == EJECTION_BASE_S
    assert breaker.record_fault(1.0 + EJECTION_BASE_S) == 2 * EJECTION_BASE_S, "on probation one is enough"


def test_refusal_is_a_penalty_until_an_answer_or_timeout() -> None:
    breaker = Breaker()
    breaker.record_refusal(0.0)
    assert (breaker.penalty_ms(0.0), breaker.penalty_ms(REFUSAL_S)) == (REFUSAL_MS, 0.0)
    assert not breaker.is_out(0.0)
    breaker.record_refusal(10.0)
    breaker.answered(10.1, 10.2)
    assert breaker.penalty_ms(10.2) == 0.0


@given(st.lists(st.tuples(st.sampled_from(["eject", "fault", "refuse", "sent", "answered"]), st.floats(0.0, 30.0))))
def test_every_ejection_ends(steps: list[tuple[str, float]]) -> None:
    breaker, now_s = Breaker(), 0.0
    for what, passed_s in steps:
        now_s += passed_s
        match what:
            case "eject":
                breaker.eject(now_s)
            case "fault":
                breaker.record_fault(now_s)
            case "refuse":
                breaker.record_refusal(now_s)
            case "sent":
                breaker.sent(now_s)
            case _:
                breaker.answered(now_s, now_s)
    assert not breaker.is_out(now_s + EJECTION_CAP_S)
    assert breaker.penalty_ms(now_s + REFUSAL_S) == 0.0
    breaker.answered(now_s + EJECTION_CAP_S, now_s + EJECTION_CAP_S)
    assert breaker.is_forgotten(now_s + EJECTION_CAP_S + FORGET_AFTER_S + 1.0)


def test_retry_after_of_a_refusal_is_respected() -> None:
    breaker = Breaker()
    breaker.record_refusal(0.0, 7.0)
    assert breaker.rest_s(2.0) == 5.0 and breaker.rest_s(7.0) == 0.0
    assert breaker.penalty_ms(6.9) == REFUSAL_MS and not breaker.is_out(1.0)
    breaker.record_refusal(1.0, 0.0)
    assert breaker.rest_s(2.0) == 5.0, "a refusal that says nothing takes nothing back"
    breaker.answered(0.5, 3.0)
    assert breaker.rest_s(3.0) == 4.0, "nor does an answer to what was there before"
    assert not breaker.is_forgotten(6.9)
