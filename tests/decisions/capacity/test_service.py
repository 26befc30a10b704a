"""InferenceService manifests read into the values that capacity planning needs."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from functions.api.kinds.inference_service import InferenceService
from functions.decisions.capacity.accelerators import GIB
from functions.decisions.capacity.service import ServedPool, accelerators_of, accelerators_per_replica, served_pool

FLEET = Path(__file__).parents[3] / "inferenceservices"


def read(path: Path) -> ServedPool:
    document = next(iter(yaml.safe_load_all(path.read_text())))
    return served_pool(InferenceService.model_validate(document, strict=False), document)


def changed(**predictor: Any) -> ServedPool:
    document = yaml.safe_load((FLEET / "fleet" / "llama-3-8b-lora.yaml").read_text())
    document["spec"]["predictor"] |= predictor
    return served_pool(InferenceService.model_validate(document, strict=False), document)


def test_the_large_pool() -> None:
    pool = read(FLEET / "fleet" / "llama-3-70b.yaml")
    assert (pool.pool, pool.shape.name, pool.product) == ("llama-3-70b", "llama-3.3-70b", "NVIDIA-H100-80GB-HBM3")
    assert (pool.accelerators, pool.replicas) == (4, (2, 8))
    serving = pool.serving
    assert (serving.tensor_parallel, serving.weight_bytes, serving.kv_bytes) == (4, 1.0, 1.0)
    assert (serving.context_tokens, serving.batched_tokens, serving.max_sequences) == (131_072, 8192, 256)


def test_adapters_and_utilization() -> None:
    serving = read(FLEET / "fleet" / "llama-3-8b-lora.yaml").serving
    assert (serving.adapter_slots, serving.adapter_rank, serving.adapters_in_host) == (16, 64, 128)
    assert serving.utilization_ratio == 0.9


def test_cpu_pool_declares_its_cache_size() -> None:
    pool = read(FLEET / "smollm2-135m.yaml")
    assert (pool.accelerators, pool.product, pool.serving.cache_bytes) == (0, None, GIB)
    assert (pool.serving.weight_bytes, pool.serving.kv_bytes) == (4.0, 4.0)


def test_a_pooling_model_has_no_cache() -> None:
    assert not read(FLEET / "fleet" / "bge-m3.yaml").shape.has_cache


@pytest.mark.parametrize("selector", [None, [], "x", {"nvidia.com/gpu.product": 3}])
def test_unreadable_node_selector_counts_as_absent(selector: object) -> None:
    assert changed(nodeSelector=selector).product is None


@pytest.mark.parametrize(
    ("predictor", "accelerators"),
    [
        ({}, 0),
        ({"model": {"resources": {"limits": {"nvidia.com/gpu": "4", "cpu": "8"}}}}, 4),
        ({"model": {"resources": {"requests": {"amd.com/gpu": 8}}}}, 8),
        ({"containers": [{"resources": {"limits": {"nvidia.com/gpu": "2"}}}, {"resources": {}}]}, 2),
        ({"model": {}, "workerSpec": {"tensorParallelSize": 4, "pipelineParallelSize": 2}}, 8),
        ({"model": {"resources": {"limits": {"nvidia.com/gpu": "4"}}}, "workerSpec": {"pipelineParallelSize": 3}}, 12),
        ({"model": {"resources": {"limits": {"nvidia.com/gpu": "4"}}}, "workerSpec": {"tensorParallelSize": "x"}}, 4),
        ({"model": {"resources": {"limits": {"nvidia.com/gpu": "many"}}}, "containers": [None, 3]}, 0),
    ],
)
def test_accelerators_of_a_replica(predictor: dict[str, object], accelerators: int) -> None:
    assert accelerators_of({"spec": {"predictor": predictor}}) == accelerators


@pytest.mark.parametrize(
    ("args", "asked", "note", "paid"),
    [
        ([], None, None, 1),  # an engine on CPU
        (["--tensor-parallel-size=4"], "4", None, 4),
        (["--tensor-parallel-size", "4", "--pipeline-parallel-size=2"], "4", None, 8),  # over two pods
        (["-tp=2", "-dp", "2"], None, None, 4),  # the runtime sets them
        (["--tensor-parallel-size=2"], "8", None, 8),  # six are idle and paid for
        (["--tensor-parallel-size=4"], "4", "16", 16),
        (["--tensor-parallel-size=none"], "many", "0", 1),
    ],
)
def test_accelerators_that_a_replica_is_paid_for(
    args: list[str], asked: str | None, note: str | None, paid: int
) -> None:
    document = yaml.safe_load((FLEET / "smollm2-135m.yaml").read_text())
    model = document["spec"]["predictor"]["model"]
    model["args"] = ["--max-model-len=2048", *args]
    model["resources"] = {"limits": {"nvidia.com/gpu": asked}} if asked is not None else {}
    document["metadata"]["annotations"] = {"shoal.dev/accelerators-per-replica": note} if note is not None else {}
    assert accelerators_per_replica(InferenceService.model_validate(document, strict=False)) == paid
