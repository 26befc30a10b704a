"""How an engine sleeps, by vLLM 0.32's rules: which of its memory is not on the accelerator, and who may be computed.

    level 0   nothing is computed; memory and cache stay
    level 1   and the weights go to host memory, the KV cache and all prefixes in it are dropped
    level 2   and the weights are dropped as well
    mode abort   what runs or waits ends with "abort"; what comes later waits
    mode wait    what runs goes on to its end first; what waits, waits on
    mode keep    what runs waits too, and is computed anew

Awake again only when all memory is back (`tags` wake a part of it). Without --enable-sleep-mode the same is done and
said, and no memory is freed, which nothing here can tell. Source: v1/engine/core.py, entrypoints/serve/dev/sleep.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Level = Literal[0, 1, 2]
Mode = Literal["abort", "wait", "keep"]
MEMORY = frozenset({"weights", "kv_cache"})
_SCHEDULING = "scheduling"  # a tag without memory: wakes from level 0


@dataclass(frozen=True, slots=True)
class Slumber:
    """The default is wide awake."""

    level: Level | None = None  # as it was asked for last; None: awake
    away: frozenset[str] = frozenset()  # memory that is not on the accelerator

    def begun(self, level: Level) -> "Slumber":
        """One that sleeps already stays as deep as it is, and only says the other level."""
        return Slumber(level, self.away or (MEMORY if level else frozenset()))

    def woken(self, tags: Iterable[str] | None) -> "Slumber":
        """All of it, or only `tags`; where one of them is there already, none comes."""
        named = MEMORY if tags is None else frozenset(tags) - {_SCHEDULING}
        away = self.away - named if tags is None or named <= self.away else self.away
        return Slumber(self.level, away) if away else Slumber()

    def brings_weights(self, tags: Iterable[str] | None) -> bool:
        """Whether waking so copies the weights back."""
        return "weights" in self.away - self.woken(tags).away

    @property
    def state(self) -> str:
        """As `vllm:engine_sleep_state` calls it; "" at level 0, for which it has no word."""
        return {None: "awake", 0: "", 1: "weights_offloaded", 2: "discard_all"}[self.level]
