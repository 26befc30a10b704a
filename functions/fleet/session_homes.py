"""Session homes as gateways publish them to each other: the replica that has a conversation, if hashes do not
determine it.

A conversation at the replica where every gateway would look for it (`functions.decisions.routing.homes`) is not
published. The others are sent in batches with eight bytes of a hash each. The first two bytes are the tenant's; ids
and texts are never sent. A batch is published to current listeners, and stored under a key that expires for gateways
that start later.

Losing a batch costs each of its conversations one recomputed prompt. Batches cross a trust boundary, so decoding is
strict and bounded. `functions.gateway.routing.homes` stores them; `session_pins` publishes rollout groups alike.
"""

from typing import Annotated, Literal

import msgspec

from functions.api.ids import PoolName, ReplicaId
from functions.fleet.session_hashes import MAX_TTL_S, HashesInvalid, SessionHashes, join, split

MAX_SESSIONS_PER_BATCH = 4096
MAX_PLACES_PER_BATCH = 256  # pairs of pool and replica
BATCH_MAX_BYTES = 128 * 1024

_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=253)]


class HomesInvalid(Exception):
    """The message is not a batch of homes; drop it."""


class SessionsAt(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Conversations at one replica. Gateways look for them there for `ttl_s` after the batch was sent."""

    pool: _Name
    replica: _Name
    ttl_s: Annotated[float, msgspec.Meta(ge=0.0, le=MAX_TTL_S)]
    hashes: SessionHashes


class HomeBatch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    gateway_id: Annotated[str, msgspec.Meta(min_length=1, max_length=128, pattern=r"\A[A-Za-z0-9._-]+\Z")]
    sent_unix_s: Annotated[float, msgspec.Meta(ge=0.0, le=1e12)]
    homes: Annotated[tuple[SessionsAt, ...], msgspec.Meta(max_length=MAX_PLACES_PER_BATCH)]
    schema_version: Literal[1] = 1


def sessions_at(pool: PoolName, replica: ReplicaId, ttl_s: float, hashes: list[bytes]) -> SessionsAt:
    return SessionsAt(pool, replica, min(ttl_s, MAX_TTL_S), join(hashes))


def hashes_in(homes: SessionsAt) -> list[bytes]:
    """Return the hashes of one entry; HomesInvalid if they are malformed or too many."""
    try:
        return split(homes.hashes)
    except HashesInvalid as error:
        raise HomesInvalid(str(error)) from error


def encode(batch: HomeBatch) -> bytes:
    return msgspec.json.encode(batch)


def decode(message: bytes) -> HomeBatch:
    """Decode a message with the replicas of conversations; HomesInvalid if it is none."""
    if len(message) > BATCH_MAX_BYTES:
        raise HomesInvalid(f"{len(message)} bytes is over the limit of {BATCH_MAX_BYTES}")
    try:
        return msgspec.json.decode(message, type=HomeBatch)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise HomesInvalid(str(error)) from error
