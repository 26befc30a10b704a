"""Session pins of a rollout's groups, as gateways publish them to each other.

During a rollout a session stays on the version that it began with, at whichever gateway its next request arrives.
Each gateway therefore publishes the sessions that it has pinned, in batches: eight bytes of a hash each, never the
id. The first two bytes are the tenant's, so that each tenant's sessions can be limited separately. A batch is
published to current listeners, and stored under a key that expires for gateways that start later.

Losing a batch may change a session's version once. Each gateway's own pins therefore hold regardless of the bus.

Batches cross a trust boundary, so decoding is strict and bounded. `functions.gateway.routing.pins` stores them.
"""

from typing import Annotated, Literal

import msgspec

from functions.api.ids import RolloutId
from functions.api.snapshot_entries import AnyRolloutId
from functions.decisions.rollout.split import Group
from functions.fleet.session_hashes import MAX_HASHES, MAX_TTL_S, HashesInvalid, SessionHashes, join, split

MAX_SESSIONS_PER_BATCH = MAX_HASHES
MAX_ROLLOUTS_PER_BATCH = 64
BATCH_MAX_BYTES = 64 * 1024


class BatchInvalid(Exception):
    """The message is not a batch of pins; drop it."""


class RolloutPins(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Sessions of one rollout that stay with their group for `ttl_s` after the batch was sent."""

    rollout: AnyRolloutId
    ttl_s: Annotated[float, msgspec.Meta(ge=0.0, le=MAX_TTL_S)]
    hashes: SessionHashes
    group: Group = "control"


class PinBatch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    gateway_id: Annotated[str, msgspec.Meta(min_length=1, max_length=128, pattern=r"\A[A-Za-z0-9._-]+\Z")]
    sent_unix_s: Annotated[float, msgspec.Meta(ge=0.0, le=1e12)]
    pins: Annotated[tuple[RolloutPins, ...], msgspec.Meta(max_length=MAX_ROLLOUTS_PER_BATCH)]
    schema_version: Literal[1] = 1


def pins_of(rollout: RolloutId, ttl_s: float, hashes: list[bytes], group: Group = "control") -> RolloutPins:
    return RolloutPins(rollout, min(ttl_s, MAX_TTL_S), join(hashes), group)


def hashes_in(pins: RolloutPins) -> list[bytes]:
    """Return the hashes of one entry; BatchInvalid if they are malformed or too many."""
    try:
        return split(pins.hashes)
    except HashesInvalid as error:
        raise BatchInvalid(str(error)) from error


def encode(batch: PinBatch) -> bytes:
    return msgspec.json.encode(batch)


def decode(message: bytes) -> PinBatch:
    """Decode a message with the sessions' groups in rollouts; BatchInvalid if it is none."""
    if len(message) > BATCH_MAX_BYTES:
        raise BatchInvalid(f"{len(message)} bytes is over the limit of {BATCH_MAX_BYTES}")
    try:
        return msgspec.json.decode(message, type=PinBatch)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BatchInvalid(str(error)) from error
