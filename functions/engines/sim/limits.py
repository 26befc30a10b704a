"""Limits of an engine, and the cost of a step.

An engine works in steps, and every token in a step makes it longer:

    step_s = overhead_s + prefill_tokens * prefill_s_per_token + decode_seqs * decode_s_per_seq

Worked example (the defaults): 512 prompt tokens together with 10 decoding sequences take 0.008 + 512 * 0.00005 + 10 *
0.0001 = 0.0346 s, so those ten wait 34.6 ms for their next token and not 9 ms.
`test_a_prefill_chunk_delays_the_decodes_beside_it` shows it.
"""

from dataclasses import dataclass


class LimitsError(ValueError):
    """The limits contradict each other; the engine does not start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLimits:
    """Capacity limits under vLLM's names (`--max-num-seqs` and so on) with their units."""

    max_model_len_tokens: int = 8192
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    """Token budget of one step, shared by prefill chunks and decodes."""
    block_size_tokens: int = 16
    num_kv_blocks: int = 8192
    enable_prefix_caching: bool = True
    max_loras: int = 0
    """Distinct adapters that may run in one step; 0 if LoRA is off."""
    max_cpu_loras: int = 0
    """Adapters kept in host memory; others are read from disk again, which stalls the step."""
    max_lora_rank: int = 16
    max_num_queued_reqs: int | None = None
    """Unfinished sequences beyond which a request is answered 503; None: the queue is unbounded."""
    max_num_queued_tokens: int | None = None
    priority_scheduling: bool = False
    num_host_blocks: int = 0
    """KV blocks that host memory holds (`--kv-offloading-size`); 0: none."""
    host_reload_s_per_token: float = 0.0
    draft_tokens: int = 0
    """Draft tokens per step of a sequence (`num_speculative_tokens`); 0: no speculative decoding."""
    draft_acceptance_ratio: float = 0.0
    """Probability that a draft token is right, given that those before it were."""
    kv_lease_s: float = 30.0
    """Time for which a prompt's blocks are held for another engine that has not read them."""

    def __post_init__(self) -> None:
        if self.num_kv_blocks * self.block_size_tokens < self.max_model_len_tokens:
            raise LimitsError(
                f"{self.num_kv_blocks} KV blocks of {self.block_size_tokens} tokens cannot hold one sequence of "
                f"max_model_len={self.max_model_len_tokens}"
            )
        if min(self.max_num_seqs, self.max_num_batched_tokens, self.max_model_len_tokens) < 1:
            raise LimitsError("max_num_seqs, max_num_batched_tokens and max_model_len must be at least 1")
        if self.max_loras > self.max_cpu_loras:
            raise LimitsError(f"max_cpu_loras ({self.max_cpu_loras}) must be >= max_loras ({self.max_loras})")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCosts:
    """Seconds that work takes. Defaults resemble a small model on one data-centre GPU."""

    overhead_s: float = 0.008
    prefill_s_per_token: float = 0.00005
    decode_s_per_seq: float = 0.0001
    adapter_load_s: float = 0.020
    """Time to load an adapter from disk to host memory; the whole engine waits."""
    adapter_activate_s: float = 0.001
    """Time to copy an adapter from host memory to a slot."""
    jitter_ratio: float = 0.0
    """Share by which each step is lengthened or shortened at most, drawn from the seeded generator."""

    def step_s(self, *, prefill_tokens: int, decode_seqs: int) -> float:
        return self.overhead_s + prefill_tokens * self.prefill_s_per_token + decode_seqs * self.decode_s_per_seq
