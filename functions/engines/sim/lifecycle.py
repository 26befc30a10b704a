"""Lifecycle of the server, and sleep of its engine.

STARTING → SERVING → DRAINING → STOPPED, and SERVING or DRAINING → DEAD (the engine process died; the server follows
it). Transitions go forward only; an illegal one changes nothing and raises.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Literal


class Phase(Enum):
    STARTING = "starting"
    SERVING = "serving"
    DRAINING = "draining"
    """SIGTERM with `--shutdown-timeout`: running requests may finish; /health stays 200, as in vLLM."""
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
    """Sleep state of an engine by vLLM 0.32's rules: which memory is off the accelerator, and which requests are
    computed.

        level 0   nothing is computed; memory and cache stay
        level 1   also, weights move to host memory and the KV cache is dropped with all its prefixes
        level 2   also, the weights are dropped
        mode abort   running and waiting requests end with "abort"; later ones wait
        mode wait    running requests finish first; waiting ones continue to wait
        mode keep    running requests wait too, and are computed again

    The engine is awake only when all memory is back (`tags` wake a part of it). Without --enable-sleep-mode the state
    and the answers are the same and no memory is freed; the simulator cannot show the difference. Source:
    v1/engine/core.py, entrypoints/serve/dev/sleep.
    """

    level: Level | None = None  # level of the last sleep request; None: awake
    away: frozenset[str] = frozenset()  # memory that is not on the accelerator

    def fall_asleep(self, level: Level) -> "Slumber":
        """Return the state asleep at `level`: all memory is away, or none at level 0. If some is away already, that
        stays as it is."""
        return Slumber(level, self.away or (MEMORY if level else frozenset()))

    def wake_up(self, tags: Iterable[str] | None) -> "Slumber":
        """Return the state with all memory, or only `tags`, awake. Nothing changes if one of the tags is awake."""
        named = MEMORY if tags is None else frozenset(tags) - {_SCHEDULING}
        away = self.away - named if tags is None or named <= self.away else self.away
        return Slumber(self.level, away) if away else Slumber()

    def reloads_weights(self, tags: Iterable[str] | None) -> bool:
        """Return True if waking these tags copies the weights back."""
        return "weights" in self.away - self.wake_up(tags).away

    @property
    def state(self) -> str:
        """Value of `vllm:engine_sleep_state`; "" at level 0, for which vLLM has no name."""
        return {None: "awake", 0: "", 1: "weights_offloaded", 2: "discard_all"}[self.level]
