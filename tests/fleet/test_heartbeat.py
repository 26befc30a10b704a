"""Heartbeats cross a trust boundary: decoding is strict, bounded, and raises only one kind of exception."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from functions.api.ids import EngineName
from functions.fleet import heartbeat as heartbeats
from functions.fleet.heartbeat import HEARTBEAT_MAX_BYTES, HeartbeatInvalid, decode, encode, to_view
from tests.fleet.builders import BEAT, beat


def with_(**changes: Any) -> bytes:
    return json.dumps({**json.loads(encode(BEAT)), **changes}).encode()


def test_a_round_trip_keeps_everything() -> None:
    full = beat(running=3, waiting=2, kv_usage_ratio=0.5, adapters=("a", "b"), snapshot_epoch=7, reason="because")
    assert decode(encode(full)) == full


def test_a_newer_agent_may_say_more() -> None:
    assert decode(with_(temperature_c=60, nested={"a": [1]})) == BEAT


@pytest.mark.parametrize(
    "changes",
    [
        {"replica_id": ""},
        {"replica_id": "a" * 129},
        {"replica_id": "a b"},
        {"replica_id": "a\n"},
        {"host": "127.0.0.1\n"},
        {"host": "evil/../path"},
        {"port": 0},
        {"port": 65536},
        {"port": "8460"},
        {"phase": "fine"},
        {"running": -1},
        {"running": 10**9 + 1},
        {"running": True},
        {"kv_usage_ratio": 1.01},
        {"kv_usage_ratio": "NaN"},
        {"service_ms": -0.1},
        {"sequence": None},
        {"incarnation": 10**30},
        {"adapters": ["a"] * 4097},
        {"adapters": "a"},
        {"reason": "a" * 513},
        {"schema_version": 2},
        {"peer_port": 65536},
        {"zone": "a b"},
        {"zone": "a\n"},
        {"adapter_room": -1},
        {"disk_bloom": "a" * 30_000},
        {"disk_bloom": "not base64!"},
        {"adapter_failures": {f"a{number}": "" for number in range(33)}},
        {"adapter_failures": {"a": "w" * 301}},
        {"adapter_failures": {"a" * 321: ""}},
        {"adapter_failures": {"a": 1}},
    ],
)
def test_heartbeat_out_of_range_is_refused_whole(changes: dict[str, Any]) -> None:
    with pytest.raises(HeartbeatInvalid):
        decode(with_(**changes))


@pytest.mark.parametrize(
    "message",
    [b"", b"null", b"[]", b"\xff", b"{", b'{"a":' * 40_000 + b"1" + b"}" * 40_000, with_() + b"x", b"[" * 200_000],
)
def test_rubbish_is_refused_not_raised(message: bytes) -> None:
    with pytest.raises(HeartbeatInvalid):
        decode(message)


def test_nesting_in_an_unknown_field_is_refused_not_raised() -> None:
    deep = encode(BEAT)[:-1] + b',"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    with pytest.raises(HeartbeatInvalid):
        decode(deep)


def test_an_oversized_message_is_not_even_parsed() -> None:
    with pytest.raises(HeartbeatInvalid, match="over the limit"):
        decode(b" " * (HEARTBEAT_MAX_BYTES + 1))


@settings(deadline=None)
@given(st.binary(max_size=300))
def test_no_bytes_make_decoding_raise_anything_else(message: bytes) -> None:
    with pytest.raises(HeartbeatInvalid):
        decode(message)


def test_the_view_has_what_routing_reads() -> None:
    view = to_view(beat(running=3, waiting=2, adapters=("x", "x", "y"), service_ms=7.0, phase="draining"))
    assert (view.id, view.pool, view.running, view.waiting, view.service_ms) == ("r0", "base", 3, 2, 7.0)
    assert (view.adapters, view.phase) == (frozenset({"x", "y"}), "draining")


def test_invalid_disk_filter_is_ignored() -> None:
    view = to_view(beat(disk_bloom="AAAA", peer_port=8500, zone="a", adapter_room=4))
    assert (view.on_disk, view.peer_port, view.zone, view.adapter_room) == (None, 8500, "a", 4)
    assert not view.has_on_disk(EngineName("acme/bot@sha256:0123456789abcdef"))


def test_silence_outlasts_several_beats() -> None:
    assert heartbeats.SILENCE_LIMIT_S >= 5 * heartbeats.HEARTBEAT_INTERVAL_S
