"""Memory and speed that an InferenceService declares: model, accelerators, and the engine's arguments.

Accelerators are the container's limit (`resources.limits`, else requests) of a resource that ends in `/gpu`; their
product is the `nodeSelector` `nvidia.com/gpu.product`. The model is named by the annotation `shoal.dev/architecture`,
else by `storageUri`. Missing arguments have vLLM's defaults.

The kind that shoal checks (`functions.api.kinds.inference_service`) leaves resources to Kubernetes. They are read
from the document itself, and unreadable values count as missing.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from functions.api.kinds import prefill_role
from functions.api.kinds.inference_service import (
    MAX_ACCELERATORS,
    InferenceService,
    accelerators_by_arguments,
    last_argument,
    parse_tokens,
)
from functions.decisions.capacity.accelerators import GIB
from functions.decisions.capacity.memory import DEFAULT_UTILIZATION_RATIO, Serving
from functions.decisions.capacity.model_shape import ModelShape, known_shape

ARCHITECTURE_ANNOTATION = "shoal.dev/architecture"
PRODUCT_LABEL = "nvidia.com/gpu.product"
_DEFAULT_BATCHED_TOKENS = 8192
_DEFAULT_SEQUENCES = 256
_FOUR_BITS = re.compile(r"awq|gptq|int4|w4a16|4bit|nvfp4|mxfp4")
_EIGHT_BITS = re.compile(r"fp8|w8a8|int8|8bit")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedPool:
    """One pool, reduced to what capacity planning needs."""

    pool: str
    replicas: tuple[int, int]  # fewest, most
    product: str | None  # product of its accelerators; None: not declared
    accelerators: int  # accelerators of one replica; 0: it runs on CPU
    shape: ModelShape
    serving: Serving
    model: str = ""  # pool whose model it serves; empty: its own
    reads: bool = False  # it only computes prompts for the other replicas of its model
    kv_bytes_per_token: int = 0  # KV cache that it transfers then, and how fast
    kv_transfer_bytes_per_s: float = 0.0


def served_pool(service: InferenceService, document: Mapping[str, Any], shape: ModelShape | None = None) -> ServedPool:
    """Return the pool of an InferenceService, reduced to what capacity planning needs. ShapeUnknown: unknown model and
    no `shape`. ValueError: the service is no pool."""
    model = service.spec.predictor.model
    if service.pool is None or model is None:
        raise ValueError(f"{service.metadata.name} is no pool: it has no label shoal.dev/pool, or no model")
    uri = (model.storage_uri or "").rstrip("/").rpartition("/")[2]
    told = service.metadata.annotations.get(ARCHITECTURE_ANNOTATION)
    raw = _at(document, "spec", "predictor")
    count = accelerators_of(document)
    return ServedPool(
        pool=service.pool,
        replicas=service.replica_bounds,
        product=_product(_at(raw, "nodeSelector")),
        accelerators=count,
        shape=shape or known_shape(told or uri),
        serving=_serving(model.args, uri, _environment(raw), count),
        model=service.model_name or "",
        reads=service.role == "prefill",
        kv_bytes_per_token=prefill_role.kv_bytes_per_token(service.metadata.annotations) or 0,
        kv_transfer_bytes_per_s=prefill_role.kv_transfer_bytes_per_s(service.metadata.annotations) or 0.0,
    )


def _serving(args: tuple[str, ...], name: str, environment: Mapping[str, str], count: int) -> Serving:
    def number(option: str, default: int) -> int:
        text = last_argument(args, option)
        return (parse_tokens(text) if text is not None else None) or default

    def switch(option: str) -> bool:
        return any(each.replace("_", "-") == option for each in args)

    tensor = number("--tensor-parallel-size", 1)
    pipeline = number("--pipeline-parallel-size", 1)
    context = number("--max-model-len", 8192)
    slots = number("--max-loras", 1) if switch("--enable-lora") else 0
    serving = Serving(
        tensor_parallel=tensor,
        pipeline_parallel=pipeline,
        weight_bytes=_weight_bytes(last_argument(args, "--quantization"), last_argument(args, "--dtype"), name),
        kv_bytes=_kv_bytes(last_argument(args, "--kv-cache-dtype"), last_argument(args, "--dtype")),
        utilization_ratio=_ratio(last_argument(args, "--gpu-memory-utilization")),
        context_tokens=context,
        max_sequences=number("--max-num-seqs", _DEFAULT_SEQUENCES),
        batched_tokens=number("--max-num-batched-tokens", _DEFAULT_BATCHED_TOKENS),
        adapter_slots=slots,
        adapter_rank=number("--max-lora-rank", 16) if slots else 0,
        adapters_in_host=max(slots, number("--max-cpu-loras", slots)) if slots else 0,
    )
    on_cpu = environment.get("VLLM_CPU_KVCACHE_SPACE", "")
    if not count and on_cpu.isdecimal():
        serving = replace(serving, cache_bytes=int(on_cpu) * GIB)
    return serving


def _weight_bytes(quantization: str | None, dtype: str | None, name: str) -> float:
    """Return the bytes of one parameter (4, 2, 1 or 0.5) by the engine's arguments, else by the model's name, else
    2."""
    if dtype in {"float32", "float"}:
        return 4.0
    for text in (quantization or "", name.lower()):
        if _FOUR_BITS.search(text):
            return 0.5
        if _EIGHT_BITS.search(text):
            return 1.0
    return 2.0


def _kv_bytes(kv_dtype: str | None, dtype: str | None) -> float:
    if kv_dtype is not None and kv_dtype.startswith("fp8"):
        return 1.0
    return 4.0 if kv_dtype in {None, "auto"} and dtype in {"float32", "float"} else 2.0


def _ratio(text: str | None) -> float:
    try:
        ratio = float(text) if text is not None else DEFAULT_UTILIZATION_RATIO
    except ValueError:
        return DEFAULT_UTILIZATION_RATIO
    return ratio if 0 < ratio <= 1 else DEFAULT_UTILIZATION_RATIO


def accelerators_of(document: Mapping[str, Any]) -> int:
    """Return the accelerators of one replica of an InferenceService, over all its pods; 0: it runs on CPU.

    They are the model's, or those of a template's containers. With a `workerSpec` they are tensorParallelSize (else
    the head's own) x pipelineParallelSize, which KServe spreads over a head and its workers.
    """
    predictor = _at(document, "spec", "predictor")
    listed = predictor.get("containers")
    containers = [each for each in listed if isinstance(each, Mapping)] if isinstance(listed, list) else []
    own = sum(_accelerators(_at(each, "resources")) for each in containers)
    own = own or _accelerators(_at(predictor, "model", "resources"))
    worker = _at(predictor, "workerSpec")
    if not worker:
        return own
    tensor, pipeline = worker.get("tensorParallelSize"), worker.get("pipelineParallelSize")
    return (tensor if type(tensor) is int else own or 1) * (pipeline if type(pipeline) is int else 1)


def accelerators_per_replica(service: InferenceService) -> int:
    """Return the accelerators charged for one replica: its annotation, else the larger of resources and ranks.

    The minimum is 1: an engine on CPU counts as one. Worked example (test_accelerators_that_a_replica_is_paid_for):
    --tensor-parallel-size=4 and nvidia.com/gpu: "4" are four; with --pipeline-parallel-size=2 eight.
    """
    predictor, annotated = service.spec.predictor, service.annotated_accelerators
    if annotated is not None:
        return annotated
    asked = accelerators_of({"spec": {"predictor": predictor.model_dump(by_alias=True)}})
    args = predictor.model.args if predictor.model is not None else ()
    return max(1, min(asked, MAX_ACCELERATORS), accelerators_by_arguments(args))


def _accelerators(resources: Mapping[str, Any]) -> int:
    for section in ("limits", "requests"):
        for name, amount in _at(resources, section).items():
            if isinstance(name, str) and name.endswith("/gpu") and str(amount).isdecimal():
                return int(str(amount)[:4])
    return 0


def _product(selector: Mapping[str, Any]) -> str | None:
    found = selector.get(PRODUCT_LABEL)
    return found if isinstance(found, str) else None


def _environment(predictor: Mapping[str, Any]) -> dict[str, str]:
    listed = _at(predictor, "model").get("env")
    entries = [each for each in listed if isinstance(each, Mapping)] if isinstance(listed, list) else []
    return {str(each.get("name")): str(each["value"]) for each in entries if "value" in each}


def _at(document: Mapping[str, Any], *path: str) -> Mapping[str, Any]:
    found: Any = document
    for key in path:
        found = found.get(key) if isinstance(found, Mapping) else None
    return found if isinstance(found, Mapping) else {}
