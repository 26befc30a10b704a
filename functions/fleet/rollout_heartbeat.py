"""Heartbeat of a gateway about the rollouts that it splits: a message a second over the bus.

Counts and buckets are cumulative since this gateway process first saw the stage. So a heartbeat that is lost costs
nothing, one that comes twice changes nothing, and one that was overtaken is dropped by its sequence. A heartbeat
carries the stages that changed; every so often all of them, for whoever began to listen later. One without any stage
says: still here.

It crosses a trust border (anyone on the bus could have sent it), so decoding is strict and bounded, and what is out of
range is refused whole. Neighbours: `functions.gateway.routing.rollout` writes, `rollout_stats` adds up.
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
    """Not a gateway's heartbeat; drop it."""


class StageStats(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One stage of one rollout, as this gateway process has seen it."""

    rollout: AnyRolloutId
    stage: Stage
    candidate: EncodedGroup
    control: EncodedGroup


class RolloutHeartbeat(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    gateway_id: GatewayId
    incarnation: UnixMillis  # the process's start: its sequence begins again at 0
    sequence: Count
    sent_unix_s: UnixSeconds
    rollouts: Annotated[tuple[StageStats, ...], msgspec.Meta(max_length=MAX_STAGES_PER_HEARTBEAT)] = ()
    schema_version: Literal[1] = 1


def encode(heartbeat: RolloutHeartbeat) -> bytes:
    return msgspec.json.encode(heartbeat)


def decode(message: bytes) -> RolloutHeartbeat:
    """A heartbeat from bus bytes; RolloutHeartbeatInvalid where they are none, or the numbers contradict each other."""
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
