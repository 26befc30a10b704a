"""The engine client against a working engine."""

from pathlib import Path

import pytest

from functions.engines.client import EngineClient
from functions.engines.errors import EngineRefused
from tests.contract.servers import MAX_MODEL_LEN, MODEL, Engine


async def test_working_engine_passes_health_probe_and_models(client: EngineClient, engine: Engine) -> None:
    await client.health(timeout_s=60)
    await client.probe(MODEL, timeout_s=60)
    (base, *_) = await client.models()
    assert (base.name, base.root, base.is_adapter) == (MODEL, engine.model_dir, False)
    assert base.max_model_len_tokens == MAX_MODEL_LEN


async def test_metrics_report_the_engine_size(client: EngineClient) -> None:
    await client.probe(MODEL, timeout_s=60)
    metrics = await client.metrics()
    assert (metrics.block_size_tokens, metrics.max_loras) == (128, 1)
    assert metrics.kv_capacity_tokens is not None and metrics.kv_capacity_tokens >= MAX_MODEL_LEN
    assert metrics.iterations_total > 0 and metrics.prefill_computed_tokens_total > 0


async def test_adapter_loads_and_unloads(client: EngineClient, adapter_dirs: dict[str, Path]) -> None:
    await client.load_adapter("acme/x@sha256:1", str(adapter_dirs["a"]))
    assert "acme/x@sha256:1" in [model.name for model in await client.models() if model.is_adapter]
    await client.probe("acme/x@sha256:1", timeout_s=60)
    await client.unload_adapter("acme/x@sha256:1")
    assert "acme/x@sha256:1" not in [model.name for model in await client.models()]


async def test_refusals_carry_the_engines_message(client: EngineClient, adapter_dirs: dict[str, Path]) -> None:
    with pytest.raises(EngineRefused, match="No adapter found") as missing:
        await client.load_adapter("z", "/tmp/shoal/no-such-dir")
    assert (missing.value.status, missing.value.retryable) == (404, False)
    with pytest.raises(EngineRefused, match="rank 64 is greater") as broken:
        await client.load_adapter("z", str(adapter_dirs["rank 64"]))
    assert (broken.value.status, broken.value.retryable) == (500, False)
