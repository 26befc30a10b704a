"""Heartbeat of a gateway about the pools that it sends to, once a second over the bus, for autoscaling.

Each heartbeat covers the last half minute, not the time since the previous heartbeat. A lost or repeated one changes
nothing, and receivers need only the last one of each gateway.

It crosses a trust boundary: any process on the bus may have sent it. Decoding is therefore strict and bounded. A bad
heartbeat is rejected as a whole, but a bad pool entry is left out alone, so that it does not hide the other pools.

What a gateway lacks to apply the policies (`needs`) is sent in a message of its own, without pools. A registry that
does not know the field drops that message and loses no pool's figures. `demand` is sent alike: it reports pools that
may be at zero, and immediately when a request begins to wait for one.

Neighbours: `functions.gateway.admission.pool_stats` counts, `functions.gateway.needs` finds what is lacking,
`pool_board` stores the last heartbeat of each gateway.
"""

from typing import Annotated, Literal

import msgspec

from functions.decisions.overload.ladder import RungName
from functions.decisions.quantile_sketch import FIRST_BUCKET, LAST_BUCKET, MAX_BUCKETS
from functions.fleet.rollout_heartbeat import GatewayId, UnixMillis, UnixSeconds

WHY_MAX_CHARS = 256
HEARTBEAT_MAX_BYTES = 512 * 1024
MAX_POOLS_PER_HEARTBEAT = 16  # 30 KB each if every bucket of both sketches is in use
MAX_DEMAND = 1024  # pools at zero with requests; other gateways, or later messages, report the rest
MAX_NEEDS = 256  # if there are more, the first by name are sent

Count = Annotated[int, msgspec.Meta(ge=0, le=10**12)]
Bucket = Annotated[int, msgspec.Meta(ge=FIRST_BUCKET, le=LAST_BUCKET)]
Buckets = Annotated[dict[Bucket, Annotated[int, msgspec.Meta(ge=1, le=10**12)]], msgspec.Meta(max_length=MAX_BUCKETS)]
PoolText = Annotated[str, msgspec.Meta(min_length=1, max_length=128, pattern=r"\A[A-Za-z0-9._-]+\Z")]
Seconds = Annotated[float, msgspec.Meta(ge=0.0, le=1e6)]

_NO_HEARTBEAT = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class PoolHeartbeatInvalid(Exception):
    """The message is not a gateway's heartbeat about its pools; drop it and count it."""


class PoolStats(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Statistics of one pool at one gateway over the last `window_s`."""

    pool: PoolText
    window_s: Annotated[float, msgspec.Meta(gt=0.0, le=3600.0)]
    arrivals: Count = 0  # requests, admitted or not
    arriving_tokens: Count = 0  # prompt tokens and expected output tokens
    deferrable_tokens: Count = 0  # part of `arriving_tokens`: the batch band's
    shed: Count = 0  # rejected for any reason
    overflow: Count = 0  # part of `shed`: for lack of capacity, and not batch
    degraded: Count = 0  # answered by another pool
    ttft_ms: Buckets = {}  # interactive requests, from arrival to first token
    gap_ms: Buckets = {}  # between consecutive tokens
    queue_s: Seconds = 0.0  # current wait of the next request that is not batch
    queued_tokens: Count = 0  # waiting now
    foreground_queued_tokens: Count = 0  # part of `queued_tokens`: those that are not batch
    # overload ladder steps in force at this gateway
    rungs: Annotated[tuple[RungName, ...], msgspec.Meta(max_length=4)] = ()
    why: Annotated[str, msgspec.Meta(max_length=WHY_MAX_CHARS)] = ""


class UnmetNeed(msgspec.Struct, frozen=True):
    """Something that a policy in force needs at a gateway and that is missing. Unknown fields are ignored."""

    what: Annotated[str, msgspec.Meta(max_length=32)]  # `tokenizer` | `tool_secret`; a newer gateway may know others
    subject: Annotated[str, msgspec.Meta(max_length=256)]  # a pool; `tenant/secret`
    why: Annotated[str, msgspec.Meta(max_length=WHY_MAX_CHARS)] = ""


class PoolDemand(msgspec.Struct, frozen=True):
    """Requests for one pool that may be at zero. Unknown fields are ignored."""

    pool: PoolText
    waking: Count = 0  # requests that wait for its first replica, or must be sent again later because of it
    open_requests: Count = 0  # requests at its replicas or in its admission queue


Demand = Annotated[tuple[PoolDemand, ...], msgspec.Meta(max_length=MAX_DEMAND)]
Needs = Annotated[tuple[UnmetNeed, ...], msgspec.Meta(max_length=MAX_NEEDS)]


class PoolHeartbeat(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    gateway_id: GatewayId
    incarnation: UnixMillis  # start time of the process: its sequence begins again at 0
    sequence: Count  # the same for all messages of one second
    sent_unix_s: UnixSeconds
    pools: Annotated[tuple[PoolStats, ...], msgspec.Meta(max_length=MAX_POOLS_PER_HEARTBEAT)] = ()
    needs: Needs | None = None  # None if this message does not report them
    demand: Demand | None = None
    schema_version: Literal[1] = 1


class _Envelope(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A heartbeat whose pools are not decoded yet."""

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
    """Decode a heartbeat without its malformed pools; return it and the number of those. PoolHeartbeatInvalid if it is
    too long or malformed, or if it has pools and all are malformed."""
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
