"""Lifecycle of one process: its phases, their transitions, and what happens to it.

                    ┌────────────── backoff ◄── crashed ◄─┐
                    ▼                                     │
    pending ──► starting ──► ready ◄──► unready ──────────┤ (each of the three may crash or be drained)
                    └──────────┴───────────┴──► draining ──► stopped ──► pending

Law: a move that the table does not have raises and changes nothing. Events are what happened (past participle),
actions what the shell must do (imperative). Times are monotonic seconds given from outside.
Neighbours: `step` decides; `supervisor` does.
"""

from dataclasses import dataclass, replace
from typing import Literal

Phase = Literal["pending", "starting", "ready", "unready", "draining", "crashed", "backoff", "stopped"]

TRANSITIONS: dict[Phase, frozenset[Phase]] = {
    "pending": frozenset({"starting", "stopped"}),
    "starting": frozenset({"ready", "draining", "crashed"}),
    "ready": frozenset({"unready", "draining", "crashed"}),
    "unready": frozenset({"ready", "draining", "crashed"}),
    "draining": frozenset({"stopped"}),
    "crashed": frozenset({"backoff", "stopped"}),
    "backoff": frozenset({"starting", "stopped"}),
    "stopped": frozenset({"pending"}),
}
RUNNING: frozenset[Phase] = frozenset({"starting", "ready", "unready", "draining"})
SERVING: frozenset[Phase] = frozenset({"starting", "ready", "unready"})


class IllegalMove(Exception):
    """A bug in the controller: the phase cannot follow from the one before."""


@dataclass(frozen=True, slots=True)
class ProcessState:
    phase: Phase = "pending"
    since_s: float = 0.0  # when the phase began
    pid: int | None = None
    failures: int = 0  # in a row; decides the backoff
    restarts: int = 0  # starts after the first, ever
    ever_ready: bool = False
    ready_since_s: float | None = None  # in this run
    not_live_since_s: float | None = None
    deadline_s: float | None = None  # of starting or draining; then the group is killed
    retry_at_s: float | None = None
    superseded: bool = False  # the next generation takes over: an exit is now the end
    removed: bool = False  # forget once stopped
    last_exit: str = ""
    reason: str = ""

    def moved(self, phase: Phase, now_s: float, reason: str = "") -> "ProcessState":
        if phase not in TRANSITIONS[self.phase]:
            raise IllegalMove(f"{self.phase} -> {phase}")
        return replace(self, phase=phase, since_s=now_s, reason=reason, deadline_s=None, retry_at_s=None)


@dataclass(frozen=True, slots=True)
class Permitted:
    """What it depends on has been ready: it may start."""


@dataclass(frozen=True, slots=True)
class Spawned:
    pid: int


@dataclass(frozen=True, slots=True)
class Adopted:
    """A process that an earlier controller started was found alive, with the spec that is wanted."""

    pid: int
    restarts: int = 0


@dataclass(frozen=True, slots=True)
class SpawnFailed:
    reason: str


@dataclass(frozen=True, slots=True)
class ReadinessProbed:
    ok: bool
    detail: str = ""


@dataclass(frozen=True, slots=True)
class LivenessProbed:
    ok: bool
    detail: str = ""
    starved_s: float = 0.0  # since the probe before: it stood in line for a processor, and could not have answered


@dataclass(frozen=True, slots=True)
class Exited:
    """The leader is gone; others of its group may remain."""

    how: str


@dataclass(frozen=True, slots=True)
class GroupSwept:
    """Nothing of its group is left."""


@dataclass(frozen=True, slots=True)
class StopRequested:
    remove: bool = False  # forget it afterwards


@dataclass(frozen=True, slots=True)
class StartRequested:
    """Start it again, after a stop or without waiting for the backoff."""


@dataclass(frozen=True, slots=True)
class TakeoverBegan:
    """The next generation was started."""


@dataclass(frozen=True, slots=True)
class HandedOver:
    """The next generation serves in its place; this one finishes what it has open and ends by itself."""


@dataclass(frozen=True, slots=True)
class TakeoverFailed:
    """The next generation died first; this one stays responsible."""


@dataclass(frozen=True, slots=True)
class Ticked:
    pass


Event = (
    Permitted
    | Spawned
    | Adopted
    | SpawnFailed
    | ReadinessProbed
    | LivenessProbed
    | Exited
    | GroupSwept
    | StopRequested
    | StartRequested
    | TakeoverBegan
    | HandedOver
    | TakeoverFailed
    | Ticked
)

Action = Literal["spawn", "terminate", "kill_group", "sweep_group"]
