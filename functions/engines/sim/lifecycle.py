"""Lifecycle of the server, and sleep of its engine. Moves are forward only; an illegal one changes nothing and raises.

STARTING → SERVING → DRAINING → STOPPED, and SERVING or DRAINING → DEAD (the engine process died; the server
follows it).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Literal


class Phase(Enum):
    STARTING = "starting"
    SERVING = "serving"
    DRAINING = "draining"
    """SIGTERM with `--shutdown-timeout`: what runs may finish; /health stays 200, as in vLLM."""
    DEAD = "dead"
    STOPPED = "stopped"


_MOVES = {
    Phase.STARTING: {Phase.SERVING, Phase.STOPPED},
    Phase.SERVING: {Phase.DRAINING, Phase.DEAD, Phase.STOPPED},
    Phase.DRAINING: {Phase.DEAD, Phase.STOPPED},
    Phase.DEAD: {Phase.STOPPED},
    Phase.STOPPED: set[Phase](),
}


class IllegalMoveError(RuntimeError):
    pass


class Lifecycle:
    def __init__(self) -> None:
        self.phase = Phase.STARTING

    def move(self, target: Phase) -> None:
        if target not in _MOVES[self.phase]:
            raise IllegalMoveError(f"{self.phase.value} → {target.value}")
        self.phase = target


Level = Literal[0, 1, 2]
Mode = Literal["abort", "wait", "keep"]
MEMORY = frozenset({"weights", "kv_cache"})
_SCHEDULING = "scheduling"  # a tag without memory: wakes from level 0


@dataclass(frozen=True, slots=True)
class Slumber:
    """How an engine sleeps, by vLLM 0.32's rules: which memory is off the accelerator, which requests are computed.

        level 0   nothing is computed; memory and cache stay
        level 1   and the weights go to host memory, the KV cache and all prefixes in it are dropped
        level 2   and the weights are dropped as well
        mode abort   what runs or waits ends with "abort"; what comes later waits
        mode wait    what runs goes on to its end first; what waits, waits on
        mode keep    what runs waits too, and is computed anew

    Awake again only when all memory is back (`tags` wake a part of it). Without --enable-sleep-mode the same is done
    and said, and no memory is freed, which nothing here can tell. Source: v1/engine/core.py,
    entrypoints/serve/dev/sleep.
    """

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
