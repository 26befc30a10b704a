"""Builders for an agent's status, on a test clock."""

from dataclasses import dataclass, replace
from typing import Any

from functions.api.ids import EngineName, PoolName, ReplicaId
from functions.decisions.health import engine as engine_health
from functions.replica.status import Adapters, AgentStatus, Identity


@dataclass
class Clock:
    now_s: float = 1000.0

    def __call__(self) -> float:
        return self.now_s


def make_status(phase: str = "ready", clock: Clock | None = None, **changes: Any) -> AgentStatus:
    """Return the status of a ready replica with one loaded adapter, except for `changes`."""
    clock = clock or Clock()
    health = replace(
        engine_health.initial_health(clock.now_s), phase=phase, reason="" if phase == "ready" else f"it is {phase}"
    )
    status = AgentStatus(
        identity=Identity(ReplicaId("r0"), PoolName("smollm2-135m"), "127.0.0.1", 8460, 1_700_000_000_000),
        health=health,
        clock=clock,
        judged_s=clock.now_s,
        adapters=Adapters(known=True, advertised=(EngineName("acme/bot@sha256:0123456789abcdef"),)),
        snapshot_epoch=7,
        engine_version="0.32.0",
    )
    for name, value in changes.items():
        setattr(status, name, value)
    return status


_NAMES = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "prompt_tokens_total")
_NAMES += ("generation_tokens_total", "prefix_cache_queries_total", "prefix_cache_hits_total")
_NAMES += ("num_preemptions_total", "iteration_tokens_total_count", "inter_token_latency_seconds_sum")
_NAMES += ("inter_token_latency_seconds_count", "request_prefill_time_seconds_sum")
_NAMES += ("request_prefill_kv_computed_tokens_sum", "e2e_request_latency_seconds_sum")
_NAMES += ("e2e_request_latency_seconds_count",)
EMPTY_PAGE = "".join(f'vllm:{name}{{engine="0"}} 0\n' for name in _NAMES)  # an engine's metrics, at rest
