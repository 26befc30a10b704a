"""Engine profiles: costs of a step and sizes of memory.

    step_s = step + reading tokens x prefill + decoding sequences x sequence + KV tokens they attend to x kv

A step reads at most `step_budget_tokens`, which include one token for each decoding sequence (chunked prefill).

Profiles of accelerators are from published figures (llm-d's simulator, latency-profiles.md: for 8B models a first
token after 256 read takes 60-120 ms on H100, 100-180 on A100, 180-280 on L40S; between tokens 10-15, 15-25 and 25-35
ms; prefill 0.15-0.30 ms a token on H100; 70B on four H100: 250-400 and 25-40 ms; KV 128 and 320 KB a token). Worked
example (test_profiles_are_within_the_published_ranges): h100-8b reads 256 tokens in 20 + 256 x 0.2 = 71 ms with its
step, and 16 sequences of 1,000 tokens take 10 + 16 x 0.05 + 16,000 x 0.00005 = 11.6 ms a token.

`h100-8b-vllm` was measured on one H100 with vLLM 0.26 (Llama 3.1 8B's shape in bf16, no adapters). Its prefill is
eight times as fast as in the published figures, which are for smaller steps. `sim` is the simulated engine that
`shoal up --engine sim` starts (`engines.sim.limits.StepCosts`). `vllm-cpu-smollm2` was measured by `shoal simulate
calibrate`: vLLM 0.32 on CPU, SmolLM2-135M in float32, one thread, on two cores shared with a dozen busy processes.
docs/explanation/simulator.md has its errors.
"""

from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineProfile:
    step_ms: float
    prefill_ms_per_token: float
    decode_ms_per_sequence: float
    decode_ms_per_kv_token: float
    step_budget_tokens: int
    max_sequences: int
    kv_tokens: int  # size of the whole cache
    price_per_hour: float = 0.0  # for the accelerators of one replica, in the operator's currency

    def __post_init__(self) -> None:
        if self.step_budget_tokens <= self.max_sequences:
            raise ValueError(
                f"a step of {self.step_budget_tokens} tokens leaves nothing to read beside {self.max_sequences} "
                f"sequences that decode: raise step_budget_tokens above max_sequences"
            )

    @property
    def least_step_s(self) -> float:
        return self.step_ms / 1000


PROFILES = MappingProxyType(
    {
        "h100-8b": EngineProfile(
            step_ms=10.0, prefill_ms_per_token=0.2, decode_ms_per_sequence=0.05, decode_ms_per_kv_token=0.00005,
            step_budget_tokens=2048, max_sequences=256, kv_tokens=400_000,
        ),
        "h100-8b-vllm": EngineProfile(
            step_ms=6.42, prefill_ms_per_token=0.0243, decode_ms_per_sequence=0.0094, decode_ms_per_kv_token=0.000042,
            step_budget_tokens=8192, max_sequences=256, kv_tokens=438_032,
        ),
        "a100-8b": EngineProfile(
            step_ms=15.0, prefill_ms_per_token=0.35, decode_ms_per_sequence=0.08, decode_ms_per_kv_token=0.00008,
            step_budget_tokens=2048, max_sequences=256, kv_tokens=400_000,
        ),
        "l40s-8b": EngineProfile(
            step_ms=25.0, prefill_ms_per_token=0.7, decode_ms_per_sequence=0.15, decode_ms_per_kv_token=0.00019,
            step_budget_tokens=2048, max_sequences=128, kv_tokens=180_000,
        ),
        "4xh100-70b": EngineProfile(
            step_ms=25.0, prefill_ms_per_token=0.9, decode_ms_per_sequence=0.08, decode_ms_per_kv_token=0.00004,
            step_budget_tokens=4096, max_sequences=256, kv_tokens=400_000,
        ),
        "sim": EngineProfile(
            step_ms=8.0, prefill_ms_per_token=0.05, decode_ms_per_sequence=0.1, decode_ms_per_kv_token=0.0,
            step_budget_tokens=2048, max_sequences=256, kv_tokens=131_072,
        ),
        "vllm-cpu-smollm2": EngineProfile(
            step_ms=88.0, prefill_ms_per_token=6.6, decode_ms_per_sequence=3.6, decode_ms_per_kv_token=0.011,
            step_budget_tokens=2048, max_sequences=32, kv_tokens=23_296,
        ),
    }
)  # fmt: skip
