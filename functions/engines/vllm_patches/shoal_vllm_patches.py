"""vLLM plugin with three fixes for engines on CPU: adapters on base requests, crashes on prompt logits, and compiled
code that is not reused.

Slot -1. vLLM marks a token without an adapter with slot -1. Its GPU kernels skip such tokens, but its CPU fallback
(vllm/lora/ops/torch_ops/lora_ops.py) indexes with -1, which is the last slot. Once --max-loras distinct adapters have
been loaded, a base request that shares a step with any adapter request is answered by the adapter in that slot. The
wrong keys and values stay in the prefix cache. Seen with 0.32.0; vLLM pull request 48421, open. The fix sets the rows
of such tokens to zero, so that every delta computed from them is zero.

Logits of a prompt (`echo` with `logprobs`, `prompt_logprobs`). vLLM requests one row for each token of the prompt,
but applies the adapters of the step's *sampled* rows, one per request. If the shapes differ, the engine core dies
with all its requests. If they happen to agree, a prompt gets another request's adapter. The fix applies the adapter
of each row's own token, found by the row's position in the step's hidden states. It works by slots and not by rows: B
is vocabulary x rank, and a copy of it for each of 2,048 rows of a prompt takes 6 GB.

Compiled code. On CPU vLLM compiles with torch's own backend and saves the result. At the next start it cannot load
it: it calls `finalize_loading` on the loaded code, which only its own backend has ("Compiling model again due to a
load failure"). Torch's code needs no finalizing, so the fix adds an empty method. Seen with 0.32.0.

The entry-point group vllm.general_plugins loads this plugin in each of vLLM's processes, before any model.
"""

import logging
import sys
from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import Any

_log = logging.getLogger("vllm.shoal_patches")
# Methods that compute a prompt's logits in vLLM's model runners, version 1 and 2.
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

    from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU  # it binds the operations at import

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
    """The step's hidden states while prompt logits are computed from them; None at any other time."""

    def __init__(self) -> None:
        self.hidden_states: Any = None

    def watching(self, init: Callable[..., None]) -> Callable[..., None]:
        """Wrap the constructor so that it patches the runner, which is loaded before its adapter layers are made."""

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
        """Return the adapter slot of each row; None if it cannot be determined."""
        if self.hidden_states is None:
            found = punica.sampler_indices
        else:
            row_bytes = self.hidden_states.stride(0) * self.hidden_states.element_size()
            first = (x.data_ptr() - self.hidden_states.data_ptr()) // row_bytes
            found = punica.token_lora_indices[first : first + x.size(0)] if first >= 0 else ()
        return found if len(found) == x.size(0) else None


def adding_by_slot(prompts: PromptRows) -> Callable[..., None]:
    def add_lora_logits(punica: Any, y: Any, x: Any, *weights: Any, **_: Any) -> None:
        """Compute y += x A B x scale for the rows with an adapter, with the shapes that vLLM documents. If the rows'
        adapters are unknown, log that and leave y unchanged."""
        lora_a_stacked, lora_b_stacked, scale = weights
        y, x = y.view(-1, y.shape[-1]), x.view(-1, x.shape[-1])
        slots = prompts.slots_of(punica, x)
        if slots is None:  # never observed; the base's own logits keep the engine alive
            _log.error("the adapters of %d rows of logits are unknown; the base model's logits are used", x.size(0))
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
