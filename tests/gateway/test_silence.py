"""Replicas that are silent although they should send."""

from functions.api.ids import ReplicaId
from functions.decisions.routing.own_load import InFlightSlot
from functions.gateway.routing.silence import MUTE_AFTER_S, Silence

R0, R1 = ReplicaId("r0"), ReplicaId("r1")


def slot(replica_id: ReplicaId = R0) -> InFlightSlot:
    return InFlightSlot(replica_id, 0, 10.0)


def test_worked_example_of_the_prologue() -> None:
    silence, stream = Silence(), slot()
    silence.expect_bytes(stream, 10.0)
    silence.record_bytes(R0, 10.2)
    assert silence.mute_replicas([R0], 11.1) == []
    assert silence.mute_replicas([R0], 10.2 + MUTE_AFTER_S) == [R0]
    assert silence.quiet_s(R0, 10.0, 11.2) == 1.0
    silence.record_bytes(R0, 12.0)
    assert silence.mute_replicas([R0], 12.5) == []


def test_paused_stream_is_not_expected_to_send() -> None:
    silence, stream = Silence(), slot()
    silence.expect_bytes(stream, 0.0)
    silence.stop_expecting(stream)
    silence.stop_expecting(stream)
    assert silence.mute_replicas([R0], 100.0) == [] and not silence.expects_bytes(R0)
    silence.expect_bytes(stream, 100.0)
    assert silence.mute_replicas([R0], 100.5) == [] and silence.mute_replicas([R0], 101.0) == [R0]


def test_replica_marked_mute_stays_mute_until_it_sends_or_is_idle() -> None:
    silence = Silence()
    silence.mark_mute(R0)
    silence.mark_mute(R1)
    assert silence.mute_replicas([R0, R1], 5.0) == [R0, R1]
    silence.record_bytes(R1, 5.0)
    assert silence.mute_replicas([R0, R1], 5.1) == [R0]
    assert silence.mute_replicas([R1], 5.2) == []
