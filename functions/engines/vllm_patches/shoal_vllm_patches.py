"""A vLLM plugin that keeps base-model requests free of adapters on CPU.

vLLM marks a token without an adapter by slot -1. Its GPU kernels skip such tokens; its CPU fallback
(vllm/lora/ops/torch_ops/lora_ops.py) indexes with -1, which is the last slot. As soon as --max-loras distinct adapters
have been loaded, a base request that shares a step with any adapter request is answered by the adapter in that slot,
and the wrong keys and values stay in the prefix cache. Seen with 0.32.0; vLLM pull request 48421, open.

Here the rows of such tokens are zeroed, so that every delta computed from them is zero. Loaded through the entry-point
group vllm.general_plugins, in each of vLLM's processes, before any model.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any


def register() -> None:
    from vllm.lora.ops import torch_ops
    from vllm.lora.ops.torch_ops import lora_ops

    for name in ("bgmv_shrink", "bgmv_expand", "bgmv_expand_slice"):
        op = getattr(lora_ops, name)
        if hasattr(op, "__wrapped__"):
            return  # vLLM calls register more than once a process
        for module in (lora_ops, torch_ops):
            setattr(module, name, skipping_base_tokens(op))


def skipping_base_tokens(op: Callable[..., None]) -> Callable[..., None]:
    import torch

    @wraps(op)
    def skipping(inputs: Any, weights: Any, output: Any, lora_indices: Any, *rest: Any, **options: Any) -> None:
        with_adapter = (lora_indices >= 0).unsqueeze(1)
        op(torch.where(with_adapter, inputs, 0), weights, output, lora_indices, *rest, **options)

    return skipping
