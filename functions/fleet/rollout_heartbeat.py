"""Heartbeat of a gateway about the rollouts that it splits: a message a second over the bus.

Counts and buckets are cumulative since this gateway process first saw the stage. A lost heartbeat therefore costs
nothing, a repeated one changes nothing, and one that arrives out of order is dropped by its sequence. A heartbeat has
the stages that changed, and periodically all of them for new listeners. One without stages shows that the gateway is
alive.

It crosses a trust boundary: any process on the bus may have sent it. Decoding is therefore strict and bounded, and a
message with a value out of range is rejected as a whole. `functions.gateway.routing.rollout` writes heartbeats,
`rollout_stats` adds them up.
"""

from typing import Annotated, Literal

import msgspec

from functions.api.snapshot_entries import AnyRolloutId
from functions.decisions.rollout.evidence import EncodedGroup, EvidenceInvalid, group_of

HEARTBEAT_MAX_BYTES = 512 * 1024  # one stage at its worst (six sketches with every bucket in use) is 80 KB
MAX_STAGES_PER_HEARTBEAT = 64

Count = Annotated[int, msgspec.Meta(ge=0, le=10**12)]
UnixMillis = Annotated[int, msgspec.Meta(ge=0, le=10**15)]
UnixSeconds = Annotated[float, msgspec.Meta(ge=0.0, le=1e12)]
Stage = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]  # as in `SplitEntry`: never the same in two attempts
GatewayId = Annotated[str, msgspec.Meta(min_length=1, max_length=128, pattern=r"\A[A-Za-z0-9._-]+\Z")]


class RolloutHeartbeatInvalid(Exception):
    """The message is not a gateway's rollout heartbeat; drop it."""


class StageStats(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Statistics of one stage of one rollout at this gateway process."""

    rollout: AnyRolloutId
    stage: Stage
    candidate: EncodedGroup
    control: EncodedGroup


class RolloutHeartbeat(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    gateway_id: GatewayId
    incarnation: UnixMillis  # start time of the process: its sequence begins again at 0
    sequence: Count
    sent_unix_s: UnixSeconds
    rollouts: Annotated[tuple[StageStats, ...], msgspec.Meta(max_length=MAX_STAGES_PER_HEARTBEAT)] = ()
    schema_version: Literal[1] = 1


def encode(heartbeat: RolloutHeartbeat) -> bytes:
    return msgspec.json.encode(heartbeat)


def decode(message: bytes) -> RolloutHeartbeat:
    """Decode a heartbeat; RolloutHeartbeatInvalid if it is none, or its numbers contradict each other."""
    if len(message) > HEARTBEAT_MAX_BYTES:
        raise RolloutHeartbeatInvalid(f"{len(message)} bytes is over the limit of {HEARTBEAT_MAX_BYTES}")
    try:
        heartbeat = msgspec.json.decode(message, type=RolloutHeartbeat)
        for said in heartbeat.rollouts:
            group_of(said.candidate)
            group_of(said.control)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, EvidenceInvalid) as error:
        raise RolloutHeartbeatInvalid(str(error)) from error
    return heartbeat
