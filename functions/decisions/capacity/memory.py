"""Memory of an accelerator: what uses it, and how many conversations fit in the rest.

    usable   = memory x utilization
    weights  = parameters / (tensor x pipeline parallel); quantised weights have their own size, embeddings stay 16 bits
    adapters = slots x rank x (in + out of every linear layer), reserved whether used or not
    working  = batched tokens x (2 hidden + 2 MLP / tensor parallel) x 2 bytes + logits of every sequence, and 0.9 GiB
               for the driver, collectives and captured graphs
    cache    = usable - all of these;  tokens = cache / bytes a token on this accelerator

KV heads are divided among the accelerators of a tensor-parallel group until each has one; beyond that they are
replicated. A latent cache (MLA) cannot be divided and is whole on each.

Worked example (test_an_8b_on_24_gb): 23.58 GiB x 0.9 with Llama 3.1 8B in 16 bits leaves room for about 31,000 tokens
with 20,000 tokens a step; vLLM reported 31,232 (vllm issue 10517). For SmolLM2 135M in 32 bits with 1 GiB of cache,
vLLM on CPU reports 23,296, as does this module (test_agrees_with_vllm_on_cpu). `working` is an estimate: the engine's
start-up line ("GPU KV cache size") is authoritative.
"""

from dataclasses import dataclass

from functions.decisions.capacity.accelerators import GIB, Accelerator
from functions.decisions.capacity.model_shape import ModelShape

DEFAULT_UTILIZATION_RATIO = 0.92  # vLLM's default
OVERHEAD_BYTES = int(0.9 * GIB)
BLOCK_TOKENS = 16  # the cache is divided into blocks


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """Engine arguments with which a model is served."""

    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    weight_bytes: float = 2.0  # bytes of a parameter, outside the embeddings
    kv_bytes: float = 2.0  # bytes of a value
    utilization_ratio: float = DEFAULT_UTILIZATION_RATIO
    context_tokens: int = 8192
    max_sequences: int = 256
    batched_tokens: int = 8192
    adapter_slots: int = 0
    adapter_rank: int = 0
    adapters_in_host: int = 0
    weights_total_bytes: int = 0  # size of the files, if known; 0: computed from the shape
    cache_bytes: int = 0  # set for the engine, as on CPU; 0: the rest of the memory

    @property
    def accelerators(self) -> int:
        return self.tensor_parallel * self.pipeline_parallel


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """Memory of each accelerator of one replica, in bytes."""

    usable: int
    weights: int
    adapters: int
    working: int
    kv_bytes_per_token: float  # on one accelerator
    cache: int  # negative: the model does not fit, by this much
    kv_tokens: int  # tokens of the whole replica
    host_adapters: int  # adapters in the host's memory
    least_kv_tokens: int  # one conversation of full length: with less, an engine refuses to start

    @property
    def fits(self) -> bool:
        return self.cache > 0 and self.kv_tokens >= self.least_kv_tokens

    def concurrency(self, context_tokens: int) -> float:
        """Return how many conversations of that length the KV cache holds; 0 if the length is 0."""
        return self.kv_tokens / context_tokens if context_tokens else 0.0


def plan_memory(shape: ModelShape, serving: Serving, device: Accelerator) -> MemoryPlan:
    usable = int(device.memory_bytes * serving.utilization_ratio)
    weights = int(weights_bytes(shape, serving) / serving.accelerators)
    adapter = 2 * shape.adapter_values(serving.adapter_rank, serving.tensor_parallel) // serving.pipeline_parallel
    adapters = serving.adapter_slots * adapter
    working = _working_bytes(shape, serving)
    cache = serving.cache_bytes or usable - weights - adapters - working
    per_token = kv_bytes_per_token(shape, serving)
    return MemoryPlan(
        usable=usable,
        weights=weights,
        adapters=adapters,
        working=working,
        kv_bytes_per_token=per_token,
        cache=cache,
        kv_tokens=max(0, int(cache / per_token)) // BLOCK_TOKENS * BLOCK_TOKENS if per_token else 0,
        host_adapters=serving.adapters_in_host * 2 * shape.adapter_values(serving.adapter_rank),
        least_kv_tokens=serving.context_tokens if per_token else 0,
    )


def weights_bytes(shape: ModelShape, serving: Serving) -> float:
    """Return the bytes of the whole model's weights, by the size of its files if that is known."""
    if serving.weights_total_bytes:
        return float(serving.weights_total_bytes)
    embeddings = min(shape.embedding_parameters, shape.parameters)
    return (shape.parameters - embeddings) * serving.weight_bytes + embeddings * max(2.0, serving.weight_bytes)


def kv_bytes_per_token(shape: ModelShape, serving: Serving) -> float:
    """Return the KV cache bytes of one token on one accelerator."""
    values = shape.kv_values_per_token / serving.pipeline_parallel
    if shape.latent_values:
        return values * serving.kv_bytes
    return values * serving.kv_bytes / min(serving.tensor_parallel, shape.kv_heads)


def _working_bytes(shape: ModelShape, serving: Serving) -> int:
    wide = 2 * shape.hidden + 2 * shape.mlp * shape.experts_a_token / serving.tensor_parallel
    logits = serving.max_sequences * shape.vocabulary * 4
    return int(serving.batched_tokens * wide * 2) + logits + OVERHEAD_BYTES
