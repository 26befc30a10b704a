"""An agent sends a whole heartbeat if a listener may lack it, and a pulse otherwise."""

import pytest

from functions.decisions.health.pace import Pace
from functions.fleet.heartbeat import (
    MESSAGE_MAX_BYTES,
    WHOLE_INTERVAL_S,
    Heartbeat,
    HeartbeatInvalid,
    Pulse,
    decode_line,
    lines,
)
from functions.fleet.heartbeat_gathering import BusLine, ReplicaLines
from tests.fleet.builders import beat


def said(replica: ReplicaLines, heartbeat: Heartbeat, *, is_known: bool = True, single: int = 0) -> BusLine:
    line = replica.next_line(heartbeat)
    replica.mark_sent(line, heartbeat, is_known=is_known, single_listeners=single)
    return line


def test_the_first_is_whole_and_those_after_it_are_pulses() -> None:
    replica = ReplicaLines()
    assert said(replica, beat(sequence=1))[1:] == (True, True)
    line = said(replica, beat(sequence=2, running=3, kv_usage_ratio=0.5))
    assert line[1:] == (False, False) and len(line.text) < 120
    pulse = decode_line(line.text)
    assert isinstance(pulse, Pulse) and (pulse.sequence, pulse.running, pulse.kv_usage_ratio) == (2, 3, 0.5)


@pytest.mark.parametrize(
    "change",
    [
        {"phase": "hung"},
        {"adapters": ("a",)},
        {"adapter_room": 1},
        {"disk_bloom": "AAAA"},
        {"reason": "r"},
        {"zone": "z"},
    ],
)
def test_a_change_is_said_at_once_and_whole(change: dict[str, object]) -> None:
    replica = ReplicaLines()
    said(replica, beat(sequence=1))
    line = said(replica, beat(sequence=2, **change))
    assert line[1:] == (True, True) and decode_line(line.text) == beat(sequence=2, **change)


def test_every_ten_seconds_it_is_whole_although_nothing_changed() -> None:
    replica = ReplicaLines()
    wholes = [
        second for second in range(31) if said(replica, beat(sequence=second, sent_unix_s=float(second))).is_whole
    ]
    assert wholes == [0, int(WHOLE_INTERVAL_S), 20, 30]


def test_heartbeat_possibly_missing_on_the_bus_is_resent_whole() -> None:
    replica = ReplicaLines()
    said(replica, beat(sequence=1))
    replica.mark_lost()
    assert said(replica, beat(sequence=2)).is_whole
    assert not said(replica, beat(sequence=3), is_known=False).is_whole
    assert said(replica, beat(sequence=4)).is_whole


def test_each_heartbeat_is_whole_for_single_listeners() -> None:
    replica = ReplicaLines()
    said(replica, beat(sequence=1), single=2)
    assert said(replica, beat(sequence=2), single=2).is_whole
    assert said(replica, beat(sequence=3)).is_whole
    assert not said(replica, beat(sequence=4)).is_whole


@pytest.mark.parametrize("line", [b"[]", b"[1]", b'["r0"]', b'["r0",1,2,3.0,-1,0,0,0,0,0,0]', b"[" * 10_000, b""])
def test_invalid_pulse_is_refused(line: bytes) -> None:
    with pytest.raises(HeartbeatInvalid):
        decode_line(line)


def test_a_newer_pulse_may_say_more() -> None:
    replica = ReplicaLines()
    said(replica, beat(sequence=1))
    text = said(replica, beat(sequence=2)).text
    assert decode_line(text[:-1] + b',7,"more"]') == decode_line(text)


def test_a_message_has_a_bound() -> None:
    assert lines(b"a\nb") == [b"a", b"b"]
    with pytest.raises(HeartbeatInvalid):
        lines(b"a" * (MESSAGE_MAX_BYTES + 1))


def test_pace_change_is_sent_whole_but_not_urgently() -> None:
    """Each replica's pace changes every few seconds: if that were urgent, heartbeats would no longer be batched."""
    replica, pace = ReplicaLines(), Pace(1, 20, 500, 3.0, 0.0, gap_ms=20.0)
    said(replica, beat(sequence=1))
    line = said(replica, beat(sequence=2, pace=pace))
    assert line[1:] == (True, False) and decode_line(line.text) == beat(sequence=2, pace=pace)
    assert said(replica, beat(sequence=3, pace=pace))[1:] == (False, False)
    assert said(replica, beat(sequence=4, pace=pace, phase="hung"))[1:] == (True, True)
