"""Where the server is in its life. Moves are forward only; an illegal one changes nothing and raises.

STARTING → SERVING → DRAINING → STOPPED, and SERVING or DRAINING → DEAD (the engine process died; the server
follows it).
"""

from enum import Enum


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
