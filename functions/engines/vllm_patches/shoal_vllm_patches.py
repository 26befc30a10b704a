"""A vLLM plugin for engines on CPU: no adapter where none is meant, no engine that dies of a prompt's logits, and none
that compiles what it has compiled.

Slot -1. vLLM marks a token without an adapter by it. Its GPU kernels skip such tokens; its CPU fallback
(vllm/lora/ops/torch_ops/lora_ops.py) indexes with -1, which is the last slot. As soon as --max-loras distinct adapters
have been loaded, a base request that shares a step with any adapter request is answered by the adapter in that slot,
and the wrong keys and values stay in the prefix cache. Seen with 0.32.0; vLLM pull request 48421, open. Here the rows
of such tokens are zeroed, so that every delta computed from them is zero.

Logits of a prompt (`echo` with `logprobs`, `prompt_logprobs`). vLLM asks for one row for each token of the prompt and
lays the adapters of the step's *sampled* rows over them, of which there is one a request: the shapes differ and the
engine core dies, for all who share it; where they happen to agree, a prompt gets another request's adapter. Here each
row has the adapter of its own token, found by where the row lies in the step's hidden states. By slots and not by rows:
B is vocabulary x rank, and a copy of it for each of 2,048 rows of a prompt takes 6 GB.

What was compiled. On CPU vLLM compiles with torch's own backend, saves the whole as it does elsewhere, and at the next
start cannot take it: it asks what it has loaded to finish by itself (`finalize_loading`), which only its own backend's
can ("Compiling model again due to a load failure"). Of torch's there is nothing to finish. Seen with 0.32.0.

Loaded through the entry-point group vllm.general_plugins, in each of vLLM's processes, before any model.
"""

import logging
import sys
from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import Any

_log = logging.getLogger("vllm.shoal_patches")
# Where vLLM computes a prompt's logits: its model runners, version 1 and 2.
_PROMPT_LOGITS = (
    ("vllm.v1.worker.gpu_model_runner", "GPUModelRunner", "_get_prompt_logprobs_dict"),
    ("vllm.v1.worker.gpu.sample.prompt_logprob", "PromptLogprobsWorker", "compute_prompt_logprobs"),
)


def register() -> None:
    import torch

    if not hasattr(torch.compiler.load_compiled_function, "__wrapped__"):
        torch.compiler.load_compiled_function = finished(torch.compiler.load_compiled_function)
    _mend_adapters()


def finished(load: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(load)
    def loading(*args: Any, **options: Any) -> Any:
        loaded = load(*args, **options)
        compiled = loaded._artifacts.compiled_fn
        if not hasattr(compiled, "finalize_loading"):
            compiled.finalize_loading = lambda _config: None
        return loaded

    return loading


def _mend_adapters() -> None:
    from vllm.lora.ops import torch_ops
    from vllm.lora.ops.torch_ops import lora_ops

    if hasattr(lora_ops.bgmv_shrink, "__wrapped__"):
        return  # vLLM calls register more than once a process
    for name in ("bgmv_shrink", "bgmv_expand", "bgmv_expand_slice"):
        op = skipping_base_tokens(getattr(lora_ops, name))
        for module in (lora_ops, torch_ops):
            setattr(module, name, op)

    from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU  # takes the operations as they are now

    prompts = PromptRows()
    PunicaWrapperCPU.__init__ = prompts.watching(PunicaWrapperCPU.__init__)
    PunicaWrapperCPU.add_lora_logits = adding_by_slot(prompts)


def skipping_base_tokens(op: Callable[..., None]) -> Callable[..., None]:
    import torch

    @wraps(op)
    def skipping(inputs: Any, weights: Any, output: Any, lora_indices: Any, *rest: Any, **options: Any) -> None:
        with_adapter = (lora_indices >= 0).unsqueeze(1)
        op(torch.where(with_adapter, inputs, 0), weights, output, lora_indices, *rest, **options)

    return skipping


class PromptRows:
    """The step's hidden states while prompts' logits are computed of them; None at any other time."""

    def __init__(self) -> None:
        self.hidden_states: Any = None

    def watching(self, init: Callable[..., None]) -> Callable[..., None]:
        """The runner is loaded by when it makes its adapters' layers, and need not be imported where none is."""

        @wraps(init)
        def made(*args: Any, **options: Any) -> None:
            init(*args, **options)
            for module, owner, method in _PROMPT_LOGITS:
                kind = getattr(sys.modules.get(module), owner, None)
                if kind is not None and not hasattr(getattr(kind, method), "__wrapped__"):
                    setattr(kind, method, self._during(getattr(kind, method)))

        return made

    def _during(self, compute: Callable[..., Any]) -> Callable[..., Any]:
        parameters = signature(compute)

        @wraps(compute)
        def computing(*args: Any, **options: Any) -> Any:
            self.hidden_states = parameters.bind(*args, **options).arguments["hidden_states"]
            try:
                return compute(*args, **options)
            finally:
                self.hidden_states = None

        return computing

    def slots_of(self, punica: Any, x: Any) -> Any:
        """The adapter slot of each row; None where that cannot be told."""
        if self.hidden_states is None:
            found = punica.sampler_indices
        else:
            row_bytes = self.hidden_states.stride(0) * self.hidden_states.element_size()
            first = (x.data_ptr() - self.hidden_states.data_ptr()) // row_bytes
            found = punica.token_lora_indices[first : first + x.size(0)] if first >= 0 else ()
        return found if len(found) == x.size(0) else None


def adding_by_slot(prompts: PromptRows) -> Callable[..., None]:
    def add_lora_logits(punica: Any, y: Any, x: Any, *weights: Any, **_: Any) -> None:
        """y += x A B x scale, for the rows with an adapter; of the shapes that vLLM documents at its own."""
        lora_a_stacked, lora_b_stacked, scale = weights
        y, x = y.view(-1, y.shape[-1]), x.view(-1, x.shape[-1])
        slots = prompts.slots_of(punica, x)
        if slots is None:  # never seen; the base's own logits, and an engine that lives
            _log.error("%d rows of logits that no adapter can be told of: they get none", x.size(0))
            return
        for slot in slots.unique().tolist():
            if slot < 0:
                continue
            rows = (slots == slot).nonzero().squeeze(1)
            a, b = lora_a_stacked[slot].squeeze(0).float(), lora_b_stacked[slot].squeeze(0).float()
            delta = (x[rows].float() @ a.T * scale) @ b.T
            width = min(delta.shape[1], y.shape[1])  # both may be padded, each in its own way
            y[rows, :width] += delta[:, :width].to(y.dtype)

    return add_lora_logits
