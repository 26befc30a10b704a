"""Heartbeats: whatever an engine reports, the bus accepts the result."""

from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from functions.api.ids import Digest, EngineName
from functions.decisions.distribution import bloom
from functions.decisions.distribution.bloom import Bloom
from functions.decisions.health.engine_rates import MAX_MS, MIN_MS, EngineRates
from functions.decisions.routing.choice import ReplicaPhase
from functions.fleet import heartbeat as heartbeats
from functions.replica.heartbeat_loop import compose
from functions.replica.status import Adapters, Disk, EngineLoad
from tests.replica.statuses import make_status


def test_heartbeat_contains_the_agents_status() -> None:
    status = make_status(
        load=EngineLoad(running=2, waiting=3, kv_usage_ratio=0.5, kv_blocks_total=100, kv_block_tokens=128)
    )
    heartbeat = compose(status, sequence=4, sent_unix_s=1.5)
    assert (heartbeat.replica_id, heartbeat.host, heartbeat.port, heartbeat.incarnation) == (
        "r0",
        "127.0.0.1",
        8460,
        1_700_000_000_000,
    )
    assert (heartbeat.phase, heartbeat.running, heartbeat.waiting, heartbeat.kv_usage_ratio) == ("ready", 2, 3, 0.5)
    assert (heartbeat.kv_blocks_total, heartbeat.kv_block_tokens) == (100, 128)
    assert heartbeat.adapters == ("acme/bot@sha256:0123456789abcdef",)
    assert (heartbeat.sequence, heartbeat.sent_unix_s, heartbeat.snapshot_epoch) == (4, 1.5, 7)


def test_a_dead_engine_holds_no_adapters() -> None:
    assert compose(make_status("dead"), sequence=0, sent_unix_s=0.0).adapters == ()
    assert compose(make_status("hung"), sequence=0, sent_unix_s=0.0).adapters != ()


def test_heartbeat_contains_the_adapter_tiers() -> None:
    status = make_status(peer_port=8500)
    name = EngineName("acme/bad@sha256:0123456789abcdef")
    status.adapters = Adapters(known=True, room=3, failures={name: "corrupt (failed 2 times)"})
    told = bloom.build([Digest("sha256:" + "ab" * 32)])
    assert told is not None
    status.disk = Disk(artifacts=1, bloom=told.encode())
    heartbeat = compose(status, sequence=0, sent_unix_s=0.0)
    assert (heartbeat.peer_port, heartbeat.adapter_room, heartbeat.adapter_failures) == (
        8500,
        3,
        {name: "corrupt (failed 2 times)"},
    )
    view = heartbeats.to_view(heartbeat)
    assert view.has_on_disk(EngineName("acme/x@sha256:abababababababab"))
    assert not view.has_on_disk(name)
    status.draining = True
    assert compose(status, sequence=1, sent_unix_s=0.0).adapter_room == 0


@pytest.mark.parametrize("text", ['"', "\\", "\x01", "\U0001f600"])
def test_names_that_grow_when_encoded_fit_the_heartbeat(text: str) -> None:
    """The engine's list of names is untrusted; it may not even be vLLM."""
    names = tuple(EngineName(f"{text * 60}{number}@sha256:0") for number in range(4096))
    status = make_status(adapters=Adapters(known=True, advertised=names, without_room=names))
    status.disk = Disk(bloom=FULL_BLOOM)
    heartbeat = compose(status, sequence=1, sent_unix_s=1.0)
    assert 0 < len(heartbeat.adapters) < 4096
    assert 0 < len(heartbeat.adapters_without_room or ()) <= heartbeats.WITHOUT_ROOM_MAX
    assert heartbeats.decode(heartbeats.encode(heartbeat)) == heartbeat


FULL_BLOOM = Bloom(bytes(bloom.MAX_BYTES - 1), 7).encode()
_ANY = st.integers(-(2**40), 2**40)
_LOADS = st.builds(
    EngineLoad,
    running=_ANY,
    waiting=_ANY,
    kv_usage_ratio=st.floats(-5, 5),
    kv_blocks_total=_ANY,
    kv_block_tokens=_ANY,
    decode_tokens_per_s=st.floats(0, 1e6),
)


@given(
    load=_LOADS,
    rates=st.builds(EngineRates, st.floats(MIN_MS, MAX_MS), st.floats(MIN_MS, MAX_MS)),
    phase=st.sampled_from(["starting", "ready", "hung", "dead"]),
    draining=st.booleans(),
    version=st.text(max_size=200),
    reason=st.text(max_size=2000),
    adapters=st.integers(0, 5000),
    name_chars=st.integers(1, 127),
    failures=st.dictionaries(st.text(max_size=400), st.text(max_size=400), max_size=40),
    without_room=st.lists(st.text(max_size=400), max_size=300),
    epoch=st.integers(0, 2**62),
)
def test_every_beat_is_one_that_the_bus_accepts(
    load: EngineLoad,
    rates: EngineRates,
    phase: str,
    draining: bool,
    version: str,
    reason: str,
    adapters: int,
    name_chars: int,
    failures: dict[str, str],
    without_room: list[str],
    epoch: int,
) -> None:
    names = tuple(EngineName(f"{'t' * name_chars}/m{number}") for number in range(adapters))
    status = make_status(phase, load=load, rates=rates, draining=draining, engine_version=version, snapshot_epoch=epoch)
    words = {EngineName(name): text for name, text in failures.items()}
    status.adapters = Adapters(known=True, advertised=names, reason=reason, room=load.running, failures=words)
    status.adapters = replace(status.adapters, without_room=tuple(map(EngineName, without_room)))
    status.disk = Disk(bloom=FULL_BLOOM)
    heartbeat = compose(status, sequence=1, sent_unix_s=1.0)
    assert heartbeats.decode(heartbeats.encode(heartbeat)) == heartbeat
    assert heartbeat.phase in get_args(ReplicaPhase)
    assert len(heartbeat.adapters) == min(adapters, 4096) or name_chars > 20 or phase == "dead"
