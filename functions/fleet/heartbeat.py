"""Heartbeat of a replica, sent by its agent every second: whole, or as a pulse.

A pulse has what differs from one second to the next (the load, the rates); the rest is as in the replica's last whole
heartbeat. A whole one is sent where the rest has changed, and every WHOLE_INTERVAL_S. One message on the bus has one or
several of both, a line each (`heartbeat_gathering`).

They cross a trust border (anyone on the bus could have sent them), so decoding is strict and bounded, and what is
out of range is refused whole.
"""

from typing import Annotated, Literal

import msgspec

from functions.api.ids import DIGEST_PATTERN, Digest, EngineName, PoolName, ReplicaId
from functions.api.netloc import HOST
from functions.decisions.distribution import bloom
from functions.decisions.health.pace import Pace
from functions.decisions.routing.choice import ReplicaPhase, ReplicaView

HEARTBEAT_INTERVAL_S = 1.0
SILENCE_LIMIT_S = 15.0  # this long without a heartbeat, and a replica is out
WHOLE_INTERVAL_S = 10.0  # less than the silence limit: one that was missed costs nobody the replica
HEARTBEAT_MAX_BYTES = 256 * 1024
MESSAGE_MAX_BYTES = 8 * HEARTBEAT_MAX_BYTES  # 128 lines of 8 KiB, and one of any length

Count = Annotated[int, msgspec.Meta(ge=0, le=10**9)]
Ratio = Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]
Millis = Annotated[float, msgspec.Meta(ge=0.0, le=1e9)]
UnixMillis = Annotated[int, msgspec.Meta(ge=0, le=10**15)]
Port = Annotated[int, msgspec.Meta(ge=1, le=65535)]
# Of a cold start, in their order (`functions.replica.cold_start`); a newer agent may know others.
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
    """Unknown fields are ignored: a newer agent may say more than an older gateway understands."""

    replica_id: Name
    pool: Name
    host: Host  # where the engine listens
    port: Port
    phase: ReplicaPhase
    sequence: Count  # grows by one a heartbeat, from the agent's start
    incarnation: UnixMillis  # the agent's start: its sequence begins again at 0
    sent_unix_s: float
    running: Count = 0
    waiting: Count = 0
    kv_usage_ratio: Ratio = 0.0
    kv_blocks_total: Count = 0
    kv_block_tokens: Count = 16  # vLLM's on GPU
    service_ms: Millis = 50.0
    prefill_ms_per_token: Millis = 0.5
    decode_tokens_per_s: Annotated[float, msgspec.Meta(ge=0.0)] = 0.0
    adapters: Annotated[tuple[str, ...], msgspec.Meta(max_length=4096)] = ()  # loaded in the engine, by engine name
    snapshot_epoch: Count = 0
    engine_version: Annotated[str, msgspec.Meta(max_length=64)] = ""
    reason: Annotated[str, msgspec.Meta(max_length=512)] = ""  # why the phase is what it is, for people
    peer_port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 0  # on `host`: where the agent loads and gives chunks
    zone: Annotated[str, msgspec.Meta(max_length=64, pattern=r"\A[A-Za-z0-9._-]*\Z")] = ""
    adapter_room: Count = 0  # how many more adapters could be loaded without waiting for one to leave
    disk_bloom: Base64 = ""  # digests on the node's disk (`functions.decisions.distribution.bloom`)
    adapter_failures: Annotated[dict[AnyEngineName, FailureText], msgspec.Meta(max_length=FAILURES_MAX)] = {}
    adapters_without_room: Annotated[tuple[AnyEngineName, ...], msgspec.Meta(max_length=WITHOUT_ROOM_MAX)] | None = None
    """Versions that are to be loaded ahead and find no place beside the others; the most important first. None from an
    older agent, which says only in its reason that there are any."""
    asleep: bool = False  # the engine's weights are in host memory: it has no part of the accelerator until it is woken
    prefix_events: bool | None = None
    """Whether the engine's KV events reach the agent. None: an older agent, or nothing was computed yet that would show
    it."""
    weights_digest: Annotated[str, msgspec.Meta(pattern=rf"\A(?:{DIGEST_PATTERN})?\Z")] = ""
    """Of the base's weights that the engine has loaded, as artifacts are named; empty: an older agent, or not known."""
    cold_start: ColdStages = {}
    """Seconds by stage from the engine's process start until it served. Empty: not measured, or not over yet."""
    node: Annotated[str, msgspec.Meta(max_length=253, pattern=r"\A[A-Za-z0-9._-]*\Z")] = ""  # empty: not known
    pace: Pace | None = None
    """What a unit of its work has taken lately; None: an older agent, or nothing measured yet. Another one only each
    few seconds, so that pulses do between them."""
    accelerator_fault: Annotated[str, msgspec.Meta(max_length=512)] = ""
    """An error of its accelerator that takes it out for good (`decisions.health.accelerator_errors`); its phase says
    draining. Empty: none."""
    kv_host_bytes: Annotated[int, msgspec.Meta(ge=0, le=2**53)] = 0
    """Of host memory, for KV blocks that leave the accelerator; 0: none, an older agent, or its size is not known."""
    kv_reload_ms_per_token: Millis = 0.0
    """From host memory to the accelerator, in two digits; 0: the engine keeps nothing there."""
    schema_version: Literal[1] = 1


class Pulse(msgspec.Struct, frozen=True, array_like=True):
    """The fields of a heartbeat that change all the time, by their names there. New ones go last, with a default."""

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


_CHANGING = Pulse.__struct_fields__[2:]  # all but whose they are


class HeartbeatInvalid(Exception):
    """Not a heartbeat; drop it and count it."""


def encode(heartbeat: Heartbeat) -> bytes:
    return msgspec.json.encode(heartbeat)


def decode(message: bytes) -> Heartbeat:
    """A heartbeat from bus bytes; HeartbeatInvalid where they are none."""
    if len(message) > HEARTBEAT_MAX_BYTES:
        raise HeartbeatInvalid(f"{len(message)} bytes is over the limit of {HEARTBEAT_MAX_BYTES}")
    try:
        return msgspec.json.decode(message, type=Heartbeat)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise HeartbeatInvalid(str(error)) from error


def lines(message: bytes) -> list[bytes]:
    """The heartbeats and pulses of one message, undecoded; HeartbeatInvalid where it is too long."""
    if len(message) > MESSAGE_MAX_BYTES:
        raise HeartbeatInvalid(f"{len(message)} bytes is over the limit of {MESSAGE_MAX_BYTES}")
    return message.split(b"\n")


def decode_line(line: bytes) -> Heartbeat | Pulse:
    """Raises HeartbeatInvalid."""
    if not line.startswith(b"["):
        return decode(line)
    try:
        return _pulses.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise HeartbeatInvalid(str(error)) from error


_pulses = msgspec.json.Decoder(Pulse)


def pulse_of(heartbeat: Heartbeat) -> bytes:
    """Encoded."""
    return msgspec.json.encode(Pulse(*(getattr(heartbeat, name) for name in Pulse.__struct_fields__)))


def is_pulse_enough(former: Heartbeat, heartbeat: Heartbeat) -> bool:
    """Whether nothing but what a pulse has differs between them."""
    return with_pulse(former, heartbeat) == heartbeat


def with_pulse(heartbeat: Heartbeat, pulse: Pulse | Heartbeat) -> Heartbeat:
    """The heartbeat that a pulse stands for, from the one before it of the same agent."""
    return msgspec.structs.replace(heartbeat, **{name: getattr(pulse, name) for name in _CHANGING})


def to_view(heartbeat: Heartbeat, like: ReplicaView | None = None) -> ReplicaView:
    """The part of a heartbeat that routing reads. `like`: of one before it with the same adapters and disk."""
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
