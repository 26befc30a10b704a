"""Quarantine: a prompt that fails on two replicas is refused; a common prompt only briefly."""

from hashlib import blake2b

from functions.api.ids import ReplicaId
from functions.decisions.health.quarantine import HOLD_S, KNOWN_HOLD_S, MAX_SUSPECTS, AnsweredLately, Quarantine


def print_of(text: str) -> bytes:
    """Return a fingerprint as gateways make it: sixteen bytes of a hash."""
    return blake2b(text.encode(), digest_size=16).digest()


BAD, PING, GOOD = print_of("bad"), print_of("ping"), print_of("good")
R0, R1, R2 = ReplicaId("r0"), ReplicaId("r1"), ReplicaId("r2")


def test_prompt_that_fails_on_two_replicas_is_held_for_a_time() -> None:
    quarantine = Quarantine()
    quarantine.record_failure(BAD, R0, 0.0)
    assert quarantine.held_for_s(BAD, 1.0) == 0.0, "one failure says nothing"
    quarantine.record_failure(BAD, R1, 5.0)
    assert quarantine.held_for_s(BAD, 5.0) == HOLD_S
    assert quarantine.held_for_s(BAD, 5.0 + HOLD_S) == 0.0
    assert quarantine.held_for_s(GOOD, 5.0) == 0.0


def test_failures_of_one_replica_hold_no_prompt() -> None:
    quarantine = Quarantine()
    for now_s in range(10):
        quarantine.record_failure(BAD, R0, float(now_s))
    assert quarantine.held_for_s(BAD, 10.0) == 0.0


def test_worked_example_of_the_prologue() -> None:
    quarantine = Quarantine()
    prompts = [print_of(f"prompt {number}") for number in range(8)]
    for prompt in prompts:
        quarantine.record_failure(prompt, R0, 0.0)
    for prompt in prompts[:2]:
        quarantine.record_failure(prompt, R1, 10.0)
    assert [quarantine.held_for_s(prompt, 10.0) for prompt in prompts] == [300.0] * 2 + [0.0] * 6


def test_answered_prompt_is_cleared() -> None:
    quarantine = Quarantine()
    quarantine.record_failure(PING, R0, 0.0)
    quarantine.answered(PING, 0.5)
    quarantine.record_failure(PING, R1, 1.0)
    assert quarantine.held_for_s(PING, 1.0) == 0.0 and len(quarantine) == 1


def test_old_failure_does_not_count() -> None:
    quarantine = Quarantine()
    quarantine.record_failure(BAD, R0, 0.0)
    quarantine.record_failure(BAD, R1, HOLD_S + 1)
    assert quarantine.held_for_s(BAD, HOLD_S + 1) == 0.0


def test_the_table_is_bounded() -> None:
    quarantine = Quarantine()
    for number in range(MAX_SUSPECTS + 10):
        quarantine.record_failure(print_of(str(number)), R0, float(number))
    assert len(quarantine) == MAX_SUSPECTS


def test_previously_answered_prompt_is_held_later_and_briefly() -> None:
    """A health check is sent every ten seconds and is in flight on both engines when they fail."""
    quarantine, check = Quarantine(), print_of("health check")
    for now_s in range(0, 900, 10):
        quarantine.answered(check, float(now_s))
    for replica in (R0, R1):
        quarantine.record_failure(check, replica, 900.0)
    assert quarantine.held_for_s(check, 901.0) == 0.0
    for replica in (R0, R1):
        quarantine.record_failure(check, replica, 910.0)
    assert quarantine.held_for_s(check, 910.0) == KNOWN_HOLD_S, "something is wrong with it, or with both engines"
    assert quarantine.held_for_s(check, 910.0 + KNOWN_HOLD_S) == 0.0


def test_answered_prompts_are_remembered_for_a_span_in_bounded_memory() -> None:
    answered = AnsweredLately()
    prints = [print_of(f"request {number}") for number in range(100_000)]
    for fingerprint in prints:
        answered.add(fingerprint, 0.0)
    assert all(answered.has(fingerprint, AnsweredLately.SPAN_S) for fingerprint in prints[::1000])
    taken_for_known = sum(answered.has(print_of(f"other {number}"), 1.0) for number in range(10_000))
    assert taken_for_known < 300, "3 in 100 at most"
    assert not any(answered.has(fingerprint, 3 * AnsweredLately.SPAN_S) for fingerprint in prints[::1000])
