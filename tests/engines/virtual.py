"""A simulated engine in virtual time: no clock, no sleeping, whole runs in microseconds."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from functions.engines.sim.adapters import AdapterId
from functions.engines.sim.blocks import CacheScope
from functions.engines.sim.core import EngineCore
from functions.engines.sim.limits import EngineLimits, StepCosts
from functions.engines.sim.sequence import Sequence

_NO_END = 100_000


def make_limits(**changes: Any) -> EngineLimits:
    small: dict[str, Any] = {
        "max_model_len_tokens": 64,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 16,
        "block_size_tokens": 4,
        "num_kv_blocks": 40,
        "max_loras": 2,
        "max_cpu_loras": 4,
    }
    return EngineLimits(**(small | changes))


@dataclass
class VirtualEngine:
    limits: EngineLimits = field(default_factory=make_limits)
    costs: StepCosts = field(default_factory=StepCosts)
    seed: int = 0

    def __post_init__(self) -> None:
        self.core = EngineCore(self.limits, self.costs, Random(self.seed))
        self.now_s = 0.0
        self.seqs: list[Sequence] = []
        self.tokens: dict[int, list[tuple[float, int]]] = {}
        """By sequence: (time, number of the token)."""

    def submit(
        self, prompt: Iterable[int], reply: int = 4, *, salt: str | None = None, adapter: int | None = None, **more: Any
    ) -> Sequence:
        """Submit a request that gets `reply` tokens."""
        name = f"a{adapter}" if adapter is not None else None
        seq = Sequence.arrive(
            len(self.seqs),
            prompt,
            range(1000, 1000 + reply),
            now_s=self.now_s,
            scope=CacheScope(name, name, salt),
            adapter=AdapterId(adapter) if adapter is not None else None,
            **more,
        )
        self.seqs.append(seq)
        self.tokens[seq.seq_id] = []
        self.core.add(seq)
        return seq

    def step(self) -> float:
        """Run one step and return its duration."""
        begun = self.core.begin_step(self.now_s)
        self.now_s += begun.duration_s
        for seq in self.core.end_step(self.now_s):
            self.tokens[seq.seq_id].append((self.now_s, seq.emitted_tokens))
        return begun.duration_s

    def run(self) -> "VirtualEngine":
        for _ in range(_NO_END):
            if not self.core.has_work:
                return self
            self.step()
        raise AssertionError(f"still {self.core.scheduler.unfinished_seqs} unfinished")

    @property
    def held_blocks(self) -> int:
        return self.core.scheduler.blocks.num_blocks - self.core.scheduler.blocks.free_blocks
