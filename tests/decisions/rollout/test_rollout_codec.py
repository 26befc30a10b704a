"""Encoding of rollouts and events: they round-trip unchanged, and invalid documents are refused."""

import msgspec
import pytest
from hypothesis import given

from functions.decisions.rollout import codec as rollout_codec
from functions.decisions.rollout.codec import Command, RolloutInvalid
from functions.decisions.rollout.events import AnyEvent, Breached, RolledBack, Superseded, VersionLoaded
from tests.decisions.rollout.rollouts import rollout, running, spec
from tests.decisions.rollout.test_rollout import ALL, events, replayed


@given(events)
def test_rollout_in_any_state_round_trips(history: list[AnyEvent]) -> None:
    for state in replayed(history):
        assert rollout_codec.decode_rollout(rollout_codec.encode(state)) == state


@pytest.mark.parametrize("event", ALL.values(), ids=lambda event: type(event).__name__)
def test_events_round_trip(event: AnyEvent) -> None:
    assert rollout_codec.decode_event(rollout_codec.encode(event)) == event
    command = Command(event, 7)
    assert rollout_codec.decode_command(rollout_codec.encode(command)) == command


def test_events_are_tagged_by_kind() -> None:
    assert rollout_codec.encode(Breached("p99")) == b'{"is":"breached","reason":"p99"}'
    assert rollout_codec.encode(VersionLoaded()) == b'{"is":"loaded"}'
    assert rollout_codec.decode_event('{"is":"rolled_back","by":"ada"}') == RolledBack("ada", "")
    assert rollout_codec.decode_event('{"is":"superseded"}') == Superseded("")


def test_spec_round_trips() -> None:
    assert rollout_codec.decode_spec(rollout_codec.encode(spec())) == spec()


def altered(**changes: object) -> bytes:
    return msgspec.json.encode({**msgspec.json.decode(rollout_codec.encode(running())), **changes})


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"[]",
        b'{"is":"loaded"}',
        altered(state="flying"),
        altered(id="ro-UPPER000"),
        altered(id="ro-12345678\n"),
        altered(stage=4),
        altered(stage=-1),
        altered(attempt=0),
        altered(model="../etc"),
        altered(from_digest="sha256:1"),
        altered(reason="x" * 2001),
        altered(unheard_of=1),
        b"[" * 10_000,
        b"\xff",
        b" " * 300_000,
    ],
    ids=range(16),
)
def test_invalid_rollout_is_refused(document: bytes) -> None:
    with pytest.raises(RolloutInvalid):
        rollout_codec.decode_rollout(document)


@pytest.mark.parametrize(
    "document", [b'{"is":"exploded"}', b'{"is":"breached"}', b'{"is":"paused","by":"' + b"a" * 201 + b'"}']
)
def test_invalid_event_is_refused(document: bytes) -> None:
    with pytest.raises(RolloutInvalid):
        rollout_codec.decode_event(document)


def test_a_spec_without_stages_is_refused() -> None:
    empty = msgspec.structs.replace(rollout().policy, stages=())
    with pytest.raises(RolloutInvalid, match="at least one stage"):
        rollout_codec.decode_spec(rollout_codec.encode(spec(policy=empty)))
