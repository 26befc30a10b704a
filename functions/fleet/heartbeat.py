"""Heartbeat of a replica, sent by its agent every second: whole, or as a pulse.

A pulse has the fields that change every second (load and rates); the other fields are as in the replica's last whole
heartbeat. A whole one is sent when other fields change, and every WHOLE_INTERVAL_S. One message on the bus has one or
several of both, one per line (`heartbeat_gathering`).

Heartbeats cross a trust boundary: any process on the bus may have sent them. Decoding is therefore strict and
bounded, and a message with a value out of range is rejected as a whole.
"""

from typing import Annotated, Literal

import msgspec

from functions.api.ids import DIGEST_PATTERN, Digest, EngineName, PoolName, ReplicaId
from functions.api.netloc import HOST
from functions.decisions.distribution import bloom
from functions.decisions.health.pace import Pace
from functions.decisions.routing.choice import ReplicaPhase, ReplicaView

HEARTBEAT_INTERVAL_S = 1.0
SILENCE_LIMIT_S = 15.0  # a replica without a heartbeat for this long is removed
WHOLE_INTERVAL_S = 10.0  # less than the silence limit: missing one does not cost the replica its place
HEARTBEAT_MAX_BYTES = 256 * 1024
MESSAGE_MAX_BYTES = 8 * HEARTBEAT_MAX_BYTES  # 128 lines of 8 KiB, plus one of any length

Count = Annotated[int, msgspec.Meta(ge=0, le=10**9)]
Ratio = Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]
Millis = Annotated[float, msgspec.Meta(ge=0.0, le=1e9)]
UnixMillis = Annotated[int, msgspec.Meta(ge=0, le=10**15)]
Port = Annotated[int, msgspec.Meta(ge=1, le=65535)]
# Stages of a cold start in order (`functions.replica.cold_start`); a newer agent may report others.
ColdStage = Literal["imports", "weights", "compile", "graphs", "setup", "first_answer", "warm_up"]
COLD_STAGES_MAX = 16
ColdStages = Annotated[
    dict[
        Annotated[str, msgspec.Meta(max_length=32, pattern=r"\A[a-z_]+\Z")],
        Annotated[float, msgspec.Meta(ge=0.0, le=1e5)],
    ],
    msgspec.Meta(max_length=COLD_STAGES_MAX),
]
FAILURES_MAX = 32
FAILURE_MAX_CHARS = 300
WITHOUT_ROOM_MAX = 256
ENGINE_NAME_MAX_CHARS = 320
AnyEngineName = Annotated[str, msgspec.Meta(max_length=ENGINE_NAME_MAX_CHARS)]
FailureText = Annotated[str, msgspec.Meta(max_length=FAILURE_MAX_CHARS)]
Base64 = Annotated[str, msgspec.Meta(max_length=bloom.MAX_TEXT_CHARS, pattern=r"\A[A-Za-z0-9+/]*={0,2}\Z")]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=128, pattern=r"\A[A-Za-z0-9._-]+\Z")]  # $ would pass "a\n"
Host = Annotated[str, msgspec.Meta(max_length=128, pattern=rf"\A(?:{HOST})\Z")]


class Heartbeat(msgspec.Struct, frozen=True):
    """A whole heartbeat. Unknown fields are ignored: a newer agent may send more than an older gateway understands."""

    replica_id: Name
    pool: Name
    host: Host  # address of the engine
    port: Port
    phase: ReplicaPhase
    sequence: Count  # grows by one with each heartbeat since the agent's start
    incarnation: UnixMillis  # start time of the agent: its sequence begins again at 0
    sent_unix_s: float
    running: Count = 0
    waiting: Count = 0
    kv_usage_ratio: Ratio = 0.0
    kv_blocks_total: Count = 0
    kv_block_tokens: Count = 16  # vLLM's default on GPU
    service_ms: Millis = 50.0
    prefill_ms_per_token: Millis = 0.5
    decode_tokens_per_s: Annotated[float, msgspec.Meta(ge=0.0)] = 0.0
    adapters: Annotated[tuple[str, ...], msgspec.Meta(max_length=4096)] = ()  # loaded in the engine, by engine name
    snapshot_epoch: Count = 0
    engine_version: Annotated[str, msgspec.Meta(max_length=64)] = ""
    reason: Annotated[str, msgspec.Meta(max_length=512)] = ""  # reason for the phase, for people
    # port on `host` where the agent loads adapters and serves chunks
    peer_port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 0
    zone: Annotated[str, msgspec.Meta(max_length=64, pattern=r"\A[A-Za-z0-9._-]*\Z")] = ""
    adapter_room: Count = 0  # adapters that could be loaded without waiting for another one to be unloaded
    disk_bloom: Base64 = ""  # bloom filter of digests on the node's disk (`functions.decisions.distribution.bloom`)
    adapter_failures: Annotated[dict[AnyEngineName, FailureText], msgspec.Meta(max_length=FAILURES_MAX)] = {}
    adapters_without_room: Annotated[tuple[AnyEngineName, ...], msgspec.Meta(max_length=WITHOUT_ROOM_MAX)] | None = None
    """Versions to preload for which there is no room, most important first. None from an older agent, which only
    mentions in its reason that there are some."""
    # True if the engine's weights are in host memory: it does not use the accelerator until it is woken
    asleep: bool = False
    prefix_events: bool | None = None
    """True if the engine's KV events reach the agent. None from an older agent, or if nothing was computed yet."""
    weights_digest: Annotated[str, msgspec.Meta(pattern=rf"\A(?:{DIGEST_PATTERN})?\Z")] = ""
    """Digest of the base weights that the engine has loaded, as artifacts are named; empty if not known or from an
    older agent."""
    cold_start: ColdStages = {}
    """Seconds by stage from the engine's process start until it served. Empty if not measured, or not over yet."""
    node: Annotated[str, msgspec.Meta(max_length=253, pattern=r"\A[A-Za-z0-9._-]*\Z")] = ""  # empty if not known
    pace: Pace | None = None
    """Recent time per unit of work; None from an older agent, or before the first measurement. It changes only every
    few seconds, so that pulses suffice in between."""
    accelerator_fault: Annotated[str, msgspec.Meta(max_length=512)] = ""
    """An accelerator error that takes the replica out for good (`decisions.health.accelerator_errors`). Its phase is
    then draining. Empty if there is none."""
    kv_host_bytes: Annotated[int, msgspec.Meta(ge=0, le=2**53)] = 0
    """Host memory for KV blocks that leave the accelerator; 0 if there is none, its size is not known, or from an
    older agent."""
    kv_reload_ms_per_token: Millis = 0.0
    """Time to reload from host memory to the accelerator, with two significant digits; 0 if the engine stores nothing
    there."""
    schema_version: Literal[1] = 1


class Pulse(msgspec.Struct, frozen=True, array_like=True):
    """The fields of a heartbeat that change every second, under the same names. New fields go last, with a default."""

    replica_id: Name
    incarnation: UnixMillis
    sequence: Count
    sent_unix_s: float
    running: Count
    waiting: Count
    kv_usage_ratio: Ratio
    service_ms: Millis
    prefill_ms_per_token: Millis
    decode_tokens_per_s: Annotated[float, msgspec.Meta(ge=0.0)]
    snapshot_epoch: Count


_CHANGING = Pulse.__struct_fields__[2:]  # all but the fields that identify the replica


class HeartbeatInvalid(Exception):
    """The message is not a heartbeat; drop it and count it."""


def encode(heartbeat: Heartbeat) -> bytes:
    return msgspec.json.encode(heartbeat)


def decode(message: bytes) -> Heartbeat:
    """Decode a whole heartbeat; HeartbeatInvalid if it is none."""
    if len(message) > HEARTBEAT_MAX_BYTES:
        raise HeartbeatInvalid(f"{len(message)} bytes is over the limit of {HEARTBEAT_MAX_BYTES}")
    try:
        return msgspec.json.decode(message, type=Heartbeat)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise HeartbeatInvalid(str(error)) from error


def lines(message: bytes) -> list[bytes]:
    """Return the heartbeats and pulses of one message, undecoded; HeartbeatInvalid if the message is too long."""
    if len(message) > MESSAGE_MAX_BYTES:
        raise HeartbeatInvalid(f"{len(message)} bytes is over the limit of {MESSAGE_MAX_BYTES}")
    return message.split(b"\n")


def decode_line(line: bytes) -> Heartbeat | Pulse:
    """Decode a heartbeat or a pulse; HeartbeatInvalid if it is neither."""
    if not line.startswith(b"["):
        return decode(line)
    try:
        return _pulses.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise HeartbeatInvalid(str(error)) from error


_pulses = msgspec.json.Decoder(Pulse)


def pulse_of(heartbeat: Heartbeat) -> bytes:
    """Return the encoded pulse of a heartbeat."""
    return msgspec.json.encode(Pulse(*(getattr(heartbeat, name) for name in Pulse.__struct_fields__)))


def is_pulse_enough(former: Heartbeat, heartbeat: Heartbeat) -> bool:
    """Return True if the two differ only in fields that a pulse has."""
    return with_pulse(former, heartbeat) == heartbeat


def with_pulse(heartbeat: Heartbeat, pulse: Pulse | Heartbeat) -> Heartbeat:
    """Return the whole heartbeat that a pulse stands for: the previous heartbeat of the same agent with the pulse's
    fields."""
    return msgspec.structs.replace(heartbeat, **{name: getattr(pulse, name) for name in _CHANGING})


def to_view(heartbeat: Heartbeat, like: ReplicaView | None = None) -> ReplicaView:
    """Return the part of a heartbeat that routing reads. `like`: an earlier view of this replica, from which adapters
    and disk content are taken instead of the heartbeat."""
    return ReplicaView(
        id=ReplicaId(heartbeat.replica_id),
        pool=PoolName(heartbeat.pool),
        host=heartbeat.host,
        port=heartbeat.port,
        phase=heartbeat.phase,
        running=heartbeat.running,
        waiting=heartbeat.waiting,
        kv_usage_ratio=heartbeat.kv_usage_ratio,
        adapters=like.adapters if like is not None else frozenset(map(EngineName, heartbeat.adapters)),
        service_ms=heartbeat.service_ms,
        prefill_ms_per_token=heartbeat.prefill_ms_per_token,
        peer_port=heartbeat.peer_port,
        zone=heartbeat.zone,
        adapter_room=heartbeat.adapter_room,
        on_disk=like.on_disk if like is not None else bloom.decode(heartbeat.disk_bloom),
        kv_capacity_tokens=heartbeat.kv_blocks_total * heartbeat.kv_block_tokens,
        weights=Digest(heartbeat.weights_digest) if heartbeat.weights_digest else None,
        reload_ms_per_token=heartbeat.kv_reload_ms_per_token,
    )
