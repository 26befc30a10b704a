"""Reports in the registry's format."""

from functions.decisions.routing.choice import ReplicaPhase
from functions.fleet.pool_board import PoolReport, PoolSum, ReplicaReport

POOL = "llama-8b"
IDLE = PoolSum(1, 0.0, 0.0, 0.0, 0.0, 0.0, 0, None, None, None)


def replica(number: int = 0, phase: ReplicaPhase = "ready", *, pool: str = POOL, **changes: float) -> ReplicaReport:
    figures = {"running": 0, "waiting": 0, "kv_usage_ratio": 0.0, "decode_tokens_per_s": 0.0, "age_s": 0.5} | changes
    return ReplicaReport(f"{pool}-{number}", pool, phase, host="127.0.0.1", peer_port=8500 + number, **figures)  # type: ignore[arg-type]


def report(*replicas: ReplicaReport, told: PoolSum | None = IDLE, connected: bool = True) -> PoolReport:
    return PoolReport(connected, {POOL: told} if told is not None else {}, replicas)
