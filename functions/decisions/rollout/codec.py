"""JSON codec of rollouts, their specifications and events. Strict and bounded, since it crosses process borders.

    {"id":"ro-…","model":"acme/bot","state":"running","stage":1,…}    a rollout, in the registry's row and in messages
    {"event":{"is":"breached","reason":"…"},"lock_version":3}         an event for exactly that version of the row

Neighbours: `lifecycle` and `events` have the types.
"""

from collections.abc import Callable
from typing import Annotated, Any

import msgspec

from functions.decisions.rollout.events import AnyEvent
from functions.decisions.rollout.lifecycle import Rollout, RolloutSpec

DOCUMENT_MAX_BYTES = 256 * 1024  # enough for a policy of 100 stages with 20 conditions each


class RolloutInvalid(Exception):
    """The document is invalid; the message says where."""


class Command(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An event for the row with this lock version. Another version means that the row has changed since."""

    event: AnyEvent
    lock_version: Annotated[int, msgspec.Meta(ge=0, le=10**9)]


_encoder = msgspec.json.Encoder(order="deterministic")
_rollout = msgspec.json.Decoder(Rollout)
_spec = msgspec.json.Decoder(RolloutSpec)
_event = msgspec.json.Decoder(AnyEvent)
_command = msgspec.json.Decoder(Command)


def encode(value: Rollout | RolloutSpec | AnyEvent | Command) -> bytes:
    """Encode canonically: equal values have equal bytes."""
    return _encoder.encode(value)


def decode_rollout(document: bytes | str) -> Rollout:
    return _checked(_decoded(_rollout.decode, document))


def decode_spec(document: bytes | str) -> RolloutSpec:
    spec: RolloutSpec = _decoded(_spec.decode, document)
    if not spec.policy.stages:
        raise RolloutInvalid("a rollout has at least one stage")
    return spec


def decode_event(document: bytes | str) -> AnyEvent:
    event: AnyEvent = _decoded(_event.decode, document)
    return event


def decode_command(document: bytes | str) -> Command:
    command: Command = _decoded(_command.decode, document)
    return command


def _decoded(decode: Callable[[bytes | str], Any], document: bytes | str) -> Any:
    if len(document) > DOCUMENT_MAX_BYTES:
        raise RolloutInvalid(f"{len(document)} bytes is over the limit of {DOCUMENT_MAX_BYTES}")
    try:
        return decode(document)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RolloutInvalid(str(error)) from error


def _checked(rollout: Rollout) -> Rollout:
    if not rollout.stage < len(rollout.policy.stages):
        raise RolloutInvalid(f"stage {rollout.stage} of {len(rollout.policy.stages)}")
    return rollout
