"""One heartbeat from what the agent knows: bounded to what the bus accepts, whatever the engine said."""

from functions.fleet.heartbeat import Heartbeat
from functions.replica.status import AgentStatus

_REASON_MAX_CHARS = 512
_ADAPTERS_MAX = 4096
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
        service_ms=rates.service_ms,
        prefill_ms_per_token=rates.prefill_ms_per_token,
        decode_tokens_per_s=load.decode_tokens_per_s,
        adapters=status.adapters.advertised[:_ADAPTERS_MAX] if phase != "dead" else (),
        snapshot_epoch=_count(status.snapshot_epoch),
        engine_version=status.engine_version[:_VERSION_MAX_CHARS],
        reason=reason[:_REASON_MAX_CHARS],
    )


def _count(value: int) -> int:
    return min(_COUNT_MAX, max(0, value))
