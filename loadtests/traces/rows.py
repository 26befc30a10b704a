"""A trace row as a busy gateway writes it, and a statement by which the store generates millions of rows."""

from functions.telemetry.store.schema import columns
from functions.telemetry.trace_row import TraceRow

SCORE = {"predicted_ms": 12.5, "queue_ms": 3.1, "prefill_ms": 8.2, "adapter_ms": 0.0, "outstanding": 4}


def row(name: str, at_s: float) -> TraceRow:
    return TraceRow(
        ts=at_s, request_id=name, trace_id="0af7651916cd43dd8448eb211c80319c", tenant_id="acme", key_id="ci",
        model_id="acme/bot", version="v1", artifact_digest="sha256:" + "ab" * 32, base_model="base",
        adapter_id="acme/bot@sha256:ab", pool="base", replica_id="base-0", session_id="", class_="interactive",
        stream=True, attempt_count=1, route_reason="least_predicted_wait", route_score=dict(SCORE), snapshot_epoch=7,
        prompt_tokens=100, cached_tokens=0, completion_tokens=20, auth_ms=0.4, queue_ms=0.0, route_ms=0.3,
        connect_ms=0.2, prefill_ms=36.0, first_token_ms=37.0, inter_token_p50_ms=10.0, inter_token_p99_ms=20.0,
        decode_tokens=20, total_ms=240.0, kv_token_seconds=30.0, gpu_seconds=0.1, status=200, finish_reason="stop",
        degraded_from="", error="",
    )  # fmt: skip


def generated(count: int, since_unix_s: int, over_s: int, first: int) -> str:
    """Return an INSERT of rows spread evenly over `over_s`: 200 tenants, 1,000 models, 1 % failures, long tails."""
    step_us = over_s * 1_000_000 / count
    at_us = f"toInt64({since_unix_s * 1_000_000} + (number - {first}) * {step_us})"
    made = {
        "ts": f"fromUnixTimestamp64Micro({at_us}, 'UTC')",
        "request_id": "lower(hex(sipHash128(number)))",
        "trace_id": "lower(hex(sipHash128(number + 1)))",
        "tenant_id": "concat('tenant-', toString(sipHash64(number) % 200))",
        "key_id": "'ci'",
        "model_id": "concat('tenant-', toString(sipHash64(number) % 200), '/m', toString(sipHash64(number, 2) % 5))",
        "version": "'v1'",
        "pool": "concat('pool-', toString(number % 8))",
        "replica_id": "concat('replica-', toString(number % 64))",
        "class": "'interactive'",
        "stream": "1",
        "attempt_count": "1",
        "route_reason": "'least_predicted_wait'",
        "route_score": """'{"predicted_ms":12.5,"queue_ms":3.1,"prefill_ms":8.2,"adapter_ms":0.0,"outstanding":4}'""",
        "prompt_tokens": "100 + sipHash64(number, 3) % 4000",
        "cached_tokens": "0",
        "completion_tokens": "sipHash64(number, 4) % 600",
        "first_token_ms": "20 + exp(rand(1) / 4294967295 * 7)",
        "total_ms": "100 + exp(rand(2) / 4294967295 * 10)",
        "kv_token_seconds": "30",
        "gpu_seconds": "0.1",
        "status": "if(sipHash64(number, 5) % 100 = 0, 503, 200)",
        "finish_reason": "'stop'",
    }
    assert made.keys() <= columns().keys()
    names = ", ".join(f"`{name}`" for name in made)
    return f"INSERT INTO shoal.requests ({names}) SELECT {', '.join(made.values())} FROM numbers({first}, {count})"
