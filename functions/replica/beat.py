"""One heartbeat from what the agent knows: bounded to what the bus accepts, whatever the engine said."""

from collections.abc import Mapping
from itertools import accumulate, takewhile

import msgspec

from functions.api.ids import EngineName
from functions.fleet.heartbeat import (
    ENGINE_NAME_MAX_CHARS,
    FAILURE_MAX_CHARS,
    FAILURES_MAX,
    WITHOUT_ROOM_MAX,
    Heartbeat,
)
from functions.replica.status import AgentStatus

_REASON_MAX_CHARS = 512
_ADAPTERS_MAX = 4096
_ADAPTERS_MAX_BYTES = 144 * 1024  # of the message's 256 KiB; one that is left out is asked for, and found loaded
_WITHOUT_ROOM_MAX_BYTES = 24 * 1024
_COUNT_MAX = 10**9
_VERSION_MAX_CHARS = 64


def compose(status: AgentStatus, *, sequence: int, sent_unix_s: float) -> Heartbeat:
    """The beat to send now."""
    phase, reason = status.phase()
    identity, load, rates = status.identity, status.load, status.rates
    return Heartbeat(
        replica_id=identity.replica_id,
        pool=identity.pool,
        host=identity.engine_host,
        port=identity.engine_port,
        phase=phase,
        sequence=sequence,
        incarnation=identity.incarnation_unix_ms,
        sent_unix_s=sent_unix_s,
        running=_count(load.running),
        waiting=_count(load.waiting),
        kv_usage_ratio=min(1.0, max(0.0, load.kv_usage_ratio)),
        kv_blocks_total=_count(load.kv_blocks_total),
        kv_block_tokens=_count(load.kv_block_tokens),
        service_ms=rates.service_ms,
        prefill_ms_per_token=rates.prefill_ms_per_token,
        decode_tokens_per_s=load.decode_tokens_per_s,
        adapters=_fitting(status.adapters.advertised, _ADAPTERS_MAX, _ADAPTERS_MAX_BYTES) if phase != "dead" else (),
        snapshot_epoch=_count(status.snapshot_epoch),
        engine_version=status.engine_version[:_VERSION_MAX_CHARS],
        reason=reason[:_REASON_MAX_CHARS],
        peer_port=status.peer_port,
        zone=identity.zone,
        adapter_room=_count(status.adapters.room) if phase == "ready" else 0,
        disk_bloom=status.disk.bloom,
        adapter_failures=_failures(status.adapters.failures),
        adapters_without_room=_without_room(status.adapters.without_room),
        asleep=status.asleep and status.standby and phase != "dead",  # who is to serve is being woken
    )


def _fitting(names: tuple[EngineName, ...], most: int, most_bytes: int) -> tuple[EngineName, ...]:
    """As many as the bus takes in one message, as they are written there: in quotes, escaped, and with a comma."""
    ends_bytes = accumulate(len(msgspec.json.encode(name)) + 1 for name in names[:most])
    return names[: sum(1 for _ in takewhile(lambda end_bytes: end_bytes <= most_bytes, ends_bytes))]


def _without_room(names: tuple[EngineName, ...]) -> tuple[EngineName, ...]:
    """The first by rank, which goes round by tenant: of hundreds that find no room, each tenant's first are told."""
    sayable = tuple(name for name in names[:WITHOUT_ROOM_MAX] if len(name) <= ENGINE_NAME_MAX_CHARS)
    return _fitting(sayable, WITHOUT_ROOM_MAX, _WITHOUT_ROOM_MAX_BYTES)


def _failures(failures: Mapping[EngineName, str]) -> dict[str, str]:
    """The first by name: where a hundred fail, they fail for one cause."""
    named = sorted(name for name in failures if len(name) <= ENGINE_NAME_MAX_CHARS)[:FAILURES_MAX]
    return {name: failures[name][:FAILURE_MAX_CHARS] for name in named}


def _count(value: int) -> int:
    return min(_COUNT_MAX, max(0, value))
