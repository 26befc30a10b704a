"""Speed of a replica: the memory traffic and arithmetic of one step, at the rates that hardware really reaches.

    step      = 1.5 ms + layers x 2 x 12 us (tensor parallel) + active weights / (bandwidth x 0.7)
    sequence  = 2 x active parameters / (arithmetic x 0.45)        in addition to the weights
    KV token  = bytes a token / (bandwidth x 0.6)
    read      = 2 x active parameters / (arithmetic x 0.45)        a prompt token

All of these apply to each of the accelerators that share a layer. With experts, a step of many sequences touches
nearly all of them: n tokens that choose k of E leave (1 - k/E)^n untouched.

Worked example (test_speed_of_llama_8b_on_h100): 16.06 GB / (3.35 TB/s x 0.7) = 6.8 ms and 1.5 ms make 8.3 ms a token
alone, 0.036 ms a prompt token. Published for 8B on H100: 10-15 ms between tokens under load, and prefill of 0.15-0.30
ms a token, slower than today's engines. This is a first estimate: `shoal simulate calibrate` measures.
"""

from dataclasses import dataclass

from functions.decisions.capacity.accelerators import Accelerator
from functions.decisions.capacity.memory import Serving, kv_bytes_per_token, weights_bytes
from functions.decisions.capacity.model_shape import ModelShape

BANDWIDTH_RATIO = 0.7  # share of the data sheet's bandwidth when reading weights
CACHE_BANDWIDTH_RATIO = 0.6  # the same when reading cache blocks
ARITHMETIC_RATIO = 0.45
STEP_MS = 1.5  # scheduling and sampling
REDUCE_MS = 0.012  # one all-reduce between accelerators of a node
_TYPICAL_BATCH = 32  # batch size for which experts are counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    step_ms: float
    ms_per_sequence: float
    ms_per_kv_token: float
    ms_per_prompt_token: float

    def step_of_ms(self, sequences: int, kv_tokens: float) -> float:
        """Return the milliseconds of a step in which so many sequences get a token each; `kv_tokens` is the sum over
        all sequences."""
        return self.step_ms + sequences * self.ms_per_sequence + kv_tokens * self.ms_per_kv_token

    def tokens_per_s(self, sequences: int, context_tokens: float, prompt_tokens_per_token: float = 0.0) -> float:
        """Return the replica's output tokens a second with so many concurrent sequences, if each output token also
        costs so many prompt tokens."""
        step_ms = self.step_of_ms(sequences, sequences * context_tokens)
        return sequences * 1000 / (step_ms + sequences * prompt_tokens_per_token * self.ms_per_prompt_token)


def speed_of(shape: ModelShape, serving: Serving, device: Accelerator) -> Speed:
    parts = serving.tensor_parallel  # pipeline stages work one after the other
    flops = device.flops_8 if serving.weight_bytes <= 1.0 else device.flops_16
    arithmetic_ms = 1000 * 2 * shape.active_parameters / (parts * flops * ARITHMETIC_RATIO)
    touched = weights_bytes(shape, serving) * _touched_ratio(shape)
    weights_ms = 1000 * touched / parts / (device.bytes_per_s * BANDWIDTH_RATIO)
    reduce_ms = shape.layers * 2 * REDUCE_MS if parts > 1 else 0.0
    whole_kv = kv_bytes_per_token(shape, serving) * serving.pipeline_parallel
    return Speed(
        step_ms=STEP_MS + reduce_ms + weights_ms,
        ms_per_sequence=arithmetic_ms,
        ms_per_kv_token=1000 * whole_kv / (device.bytes_per_s * CACHE_BANDWIDTH_RATIO),
        ms_per_prompt_token=arithmetic_ms,
    )


def _touched_ratio(shape: ModelShape) -> float:
    """Return the share of the weights that a step of a typical batch touches; 1 without experts."""
    if shape.experts == 1:
        return 1.0
    everybodys = shape.active_parameters / shape.parameters
    chosen = 1 - (1 - shape.experts_a_token / shape.experts) ** _TYPICAL_BATCH
    return everybodys + (1 - everybodys) * chosen
