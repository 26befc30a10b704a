"""Heartbeat of a gateway about the pools that it sends to, once a second over the bus, for autoscaling.

Each heartbeat holds the last half minute whole, not what came since the last heartbeat: one that is lost or comes
twice changes nothing, and nobody who listens needs to remember anything but the last one of each gateway.

It crosses a trust border (anyone on the bus could have sent it), so decoding is strict and bounded, and what is out of
range is refused: a heartbeat whole, but of its pools only those that are wrong, so that one pool's odd figure does not
blind whoever decides on the others.

What a gateway lacks to do as the policies say (`needs`) goes in a message of its own, without pools: a registry that
does not know the field drops that message, and no pool's figures with it. The same holds of `demand`, which tells of
pools that may be at zero and goes out at once when somebody begins to wait for one.

Neighbours: `functions.gateway.admission.pool_stats` counts, `functions.gateway.needs` looks for what is lacking,
`pool_board` keeps the last word of each.
"""

from typing import Annotated, Literal

import msgspec

from functions.decisions.overload.ladder import RungName
from functions.decisions.quantile_sketch import FIRST_BUCKET, LAST_BUCKET, MAX_BUCKETS
from functions.fleet.rollout_heartbeat import GatewayId, UnixMillis, UnixSeconds

WHY_MAX_CHARS = 256
HEARTBEAT_MAX_BYTES = 512 * 1024
MAX_POOLS_PER_HEARTBEAT = 16  # with every bucket of both sketches in use, 30 KB each
MAX_DEMAND = 1024  # pools at zero that somebody asks for; more of them are told of by other gateways, or later
MAX_NEEDS = 256  # more of them, and the first by name are told

Count = Annotated[int, msgspec.Meta(ge=0, le=10**12)]
Bucket = Annotated[int, msgspec.Meta(ge=FIRST_BUCKET, le=LAST_BUCKET)]
Buckets = Annotated[dict[Bucket, Annotated[int, msgspec.Meta(ge=1, le=10**12)]], msgspec.Meta(max_length=MAX_BUCKETS)]
PoolText = Annotated[str, msgspec.Meta(min_length=1, max_length=128, pattern=r"\A[A-Za-z0-9._-]+\Z")]
Seconds = Annotated[float, msgspec.Meta(ge=0.0, le=1e6)]

_NO_HEARTBEAT = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class PoolHeartbeatInvalid(Exception):
    """Not a gateway's word on its pools; drop it and count it."""


class PoolStats(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One pool, as one gateway has seen it in the last `window_s`."""

    pool: PoolText
    window_s: Annotated[float, msgspec.Meta(gt=0.0, le=3600.0)]
    arrivals: Count = 0  # requests, whether they were taken in or not
    arriving_tokens: Count = 0  # their prompts, and what was expected to be made
    deferrable_tokens: Count = 0  # of them, the batch band's
    shed: Count = 0  # refused, for whatever reason
    overflow: Count = 0  # of them, the ones that were refused for want of capacity, and are not batch
    degraded: Count = 0  # answered by another pool
    ttft_ms: Buckets = {}  # interactive ones, from their coming to the first token
    gap_ms: Buckets = {}  # between tokens, each of them
    queue_s: Seconds = 0.0  # how long the next one that is not batch would wait, now
    queued_tokens: Count = 0  # that wait now
    foreground_queued_tokens: Count = 0  # of them, those that are not batch
    rungs: Annotated[tuple[RungName, ...], msgspec.Meta(max_length=4)] = ()  # of the overload ladder, in force here
    why: Annotated[str, msgspec.Meta(max_length=WHY_MAX_CHARS)] = ""


class UnmetNeed(msgspec.Struct, frozen=True):
    """Something that a policy in force needs at a gateway, and that is not there. Unknown fields are ignored."""

    what: Annotated[str, msgspec.Meta(max_length=32)]  # `tokenizer` | `tool_secret`; a newer gateway may know others
    subject: Annotated[str, msgspec.Meta(max_length=256)]  # a pool; `tenant/secret`
    why: Annotated[str, msgspec.Meta(max_length=WHY_MAX_CHARS)] = ""


class PoolDemand(msgspec.Struct, frozen=True):
    """Requests for one pool that may be at zero. Unknown fields are ignored."""

    pool: PoolText
    waking: Count = 0  # that wait for its first replica, or were told to come back for it
    open_requests: Count = 0  # that it has, or that wait in its admission queue


Demand = Annotated[tuple[PoolDemand, ...], msgspec.Meta(max_length=MAX_DEMAND)]
Needs = Annotated[tuple[UnmetNeed, ...], msgspec.Meta(max_length=MAX_NEEDS)]


class PoolHeartbeat(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    gateway_id: GatewayId
    incarnation: UnixMillis  # the process's start: its sequence begins again at 0
    sequence: Count  # the same for all messages of one second
    sent_unix_s: UnixSeconds
    pools: Annotated[tuple[PoolStats, ...], msgspec.Meta(max_length=MAX_POOLS_PER_HEARTBEAT)] = ()
    needs: Needs | None = None  # None: this message does not speak of them
    demand: Demand | None = None
    schema_version: Literal[1] = 1


class _Envelope(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A heartbeat whose pools were not looked into."""

    gateway_id: GatewayId
    incarnation: UnixMillis
    sequence: Count
    sent_unix_s: UnixSeconds
    pools: Annotated[tuple[msgspec.Raw, ...], msgspec.Meta(max_length=MAX_POOLS_PER_HEARTBEAT)] = ()
    needs: Needs | None = None
    demand: Demand | None = None
    schema_version: Literal[1] = 1


def encode(heartbeat: PoolHeartbeat) -> bytes:
    return msgspec.json.encode(heartbeat)


def decode(message: bytes) -> tuple[PoolHeartbeat, int]:
    """A heartbeat from bus bytes, and how many of its pools were left out; PoolHeartbeatInvalid where nothing is left
    of it."""
    if len(message) > HEARTBEAT_MAX_BYTES:
        raise PoolHeartbeatInvalid(f"{len(message)} bytes is over the limit of {HEARTBEAT_MAX_BYTES}")
    try:
        envelope = msgspec.json.decode(message, type=_Envelope)
    except _NO_HEARTBEAT as error:
        raise PoolHeartbeatInvalid(str(error)) from error
    pools: list[PoolStats] = []
    wrong = ""
    for raw in envelope.pools:
        try:
            pools.append(msgspec.json.decode(raw, type=PoolStats))
        except _NO_HEARTBEAT as error:
            wrong = str(error)
    if wrong and not pools:
        raise PoolHeartbeatInvalid(wrong)
    heartbeat = PoolHeartbeat(
        envelope.gateway_id, envelope.incarnation, envelope.sequence, envelope.sent_unix_s, tuple(pools),
        envelope.needs, envelope.demand,
    )  # fmt: skip
    return heartbeat, len(envelope.pools) - len(pools)
