"""Memory plans compared with what engines reported at their start."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from functions.decisions.capacity.accelerators import (
    ACCELERATORS,
    GIB,
    AcceleratorUnknown,
    accelerator,
    parse_accelerator,
)
from functions.decisions.capacity.memory import Serving, kv_bytes_per_token, plan_memory, weights_bytes
from functions.decisions.capacity.model_shape import KNOWN

H100 = ACCELERATORS["NVIDIA-H100-80GB-HBM3"]
LLAMA_8B, LLAMA_70B = KNOWN["llama-3.1-8b"], KNOWN["llama-3.3-70b"]


def test_an_8b_on_24_gb() -> None:
    device = parse_accelerator("RTX-3090=23.58:0.936:71:71")
    plan = plan_memory(LLAMA_8B, Serving(utilization_ratio=0.9, batched_tokens=20_000), device)
    assert plan.kv_tokens == pytest.approx(31_232, rel=0.03)
    assert plan.kv_bytes_per_token == 131_072
    assert plan.weights / GIB == pytest.approx(14.99, rel=0.01)


def test_agrees_with_vllm_on_cpu() -> None:
    """vLLM reports: KV cache size 23,296 tokens, maximum concurrency for 2,048 tokens per request 11.38."""
    plan = plan_memory(KNOWN["smollm2-135m"], Serving(kv_bytes=4.0, weight_bytes=4.0, cache_bytes=GIB), H100)
    assert plan.kv_tokens == 23_296
    assert round(plan.concurrency(2048), 2) == 11.38


def test_kv_heads_are_split_down_to_one_per_accelerator() -> None:
    per_token = [kv_bytes_per_token(LLAMA_8B, Serving(tensor_parallel=parts)) for parts in (1, 2, 8, 16)]
    assert per_token == [131_072, 65_536, 16_384, 16_384]


def test_latent_cache_is_replicated_on_each_accelerator() -> None:
    deepseek = KNOWN["deepseek-v3"]
    assert kv_bytes_per_token(deepseek, Serving(tensor_parallel=8)) == kv_bytes_per_token(deepseek, Serving())


def test_quantised_weights_leave_embeddings_as_they_are() -> None:
    eight = weights_bytes(LLAMA_70B, Serving(weight_bytes=1.0))
    assert eight == pytest.approx(70.55e9 + 2.1e9, rel=0.001)


def test_plan_that_does_not_fit_has_negative_cache() -> None:
    plan = plan_memory(LLAMA_70B, Serving(), H100)
    assert not plan.fits
    assert plan.cache < 0 == plan.kv_tokens


def test_a_cache_smaller_than_one_conversation_does_not_fit() -> None:
    """vLLM refuses to start in that case."""
    serving = Serving(tensor_parallel=4, weight_bytes=1.0, kv_bytes=1.0)
    tight = plan_memory(LLAMA_70B, replace(serving, context_tokens=131_072), ACCELERATORS["NVIDIA-L4"])
    assert tight.cache > 0
    assert not tight.fits
    assert plan_memory(LLAMA_70B, replace(serving, context_tokens=32_768), ACCELERATORS["NVIDIA-L4"]).fits


def test_adapter_slots_use_memory() -> None:
    without = plan_memory(LLAMA_8B, Serving(), H100)
    slots = plan_memory(LLAMA_8B, Serving(adapter_slots=16, adapter_rank=64, adapters_in_host=128), H100)
    assert without.cache - slots.cache == slots.adapters == 16 * 2 * LLAMA_8B.adapter_values(64)
    assert slots.host_adapters == 8 * slots.adapters


@given(
    parts=st.sampled_from([1, 2, 4, 8]), stages=st.sampled_from([1, 2, 4]), sequences=st.integers(1, 1024),
    name=st.sampled_from(sorted(KNOWN)), slots=st.integers(0, 64),
)  # fmt: skip
def test_more_sequences_or_slots_never_leave_more_cache(
    parts: int, stages: int, sequences: int, name: str, slots: int
) -> None:
    serving = Serving(
        tensor_parallel=parts, pipeline_parallel=stages, max_sequences=sequences, adapter_slots=slots, adapter_rank=16
    )
    plan = plan_memory(KNOWN[name], serving, H100)
    assert plan.usable == pytest.approx(plan.weights + plan.adapters + plan.working + plan.cache, abs=2)
    for more in (replace(serving, max_sequences=sequences + 1), replace(serving, adapter_slots=slots + 1)):
        assert plan_memory(KNOWN[name], more, H100).cache <= plan.cache
    assert plan_memory(KNOWN[name], replace(serving, tensor_parallel=2 * parts), H100).cache >= plan.cache


def test_another_accelerator_can_be_described() -> None:
    assert accelerator("MI300X=191.5:5.3:1307:2614").memory_bytes == int(191.5 * GIB)


@pytest.mark.parametrize("text", ["H100", "X=1:2:3", "X=a:b:c:d", "=1:2:3:4", "X=0:1:1:1", "X=nan:1:1:1"])
def test_unknown_accelerator_is_refused(text: str) -> None:
    with pytest.raises(AcceleratorUnknown):
        accelerator(text)
