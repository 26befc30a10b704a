"""Lifecycle of one process: its phases, their transitions, and the events that happen to it.

                    ┌────────────── backoff ◄── crashed ◄─┐
                    ▼                                     │
    pending ──► starting ──► ready ◄──► unready ──────────┤ (each of the three may crash or be drained)
                    └──────────┴───────────┴──► draining ──► stopped ──► pending

Invariant: a transition that is not in the table raises and changes nothing. Events are what happened (past
participle); actions are what the shell must do (imperative). Times are monotonic seconds that the caller passes.
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


class IllegalPhaseChange(Exception):
    """The phase cannot follow the current one, which is a bug in the controller."""


@dataclass(frozen=True, slots=True)
class ProcessState:
    phase: Phase = "pending"
    since_s: float = 0.0  # start of the phase
    pid: int | None = None
    failures: int = 0  # consecutive failures, which determine the backoff
    restarts: int = 0  # all starts after the first
    ever_ready: bool = False
    ready_since_s: float | None = None  # first time ready in this run
    not_live_since_s: float | None = None
    deadline_s: float | None = None  # limit for starting or draining; then the group is killed
    retry_at_s: float | None = None
    superseded: bool = False  # the next generation takes over, so an exit is not a crash
    removed: bool = False  # forget the process once it has stopped
    last_exit: str = ""
    reason: str = ""

    def moved(self, phase: Phase, now_s: float, reason: str = "") -> "ProcessState":
        if phase not in TRANSITIONS[self.phase]:
            raise IllegalPhaseChange(f"{self.phase} -> {phase}")
        return replace(self, phase=phase, since_s=now_s, reason=reason, deadline_s=None, retry_at_s=None)


@dataclass(frozen=True, slots=True)
class Permitted:
    """Every process that this one depends on has been ready, so it may start."""


@dataclass(frozen=True, slots=True)
class Spawned:
    pid: int


@dataclass(frozen=True, slots=True)
class Adopted:
    """A process of an earlier controller was found alive with a wanted spec."""

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
    starved_s: float = 0.0  # wait for a processor since the last probe, in which no answer was possible


@dataclass(frozen=True, slots=True)
class Exited:
    """The leader has ended; others of its group may remain."""

    how: str


@dataclass(frozen=True, slots=True)
class GroupSwept:
    """No process of the group is left."""


@dataclass(frozen=True, slots=True)
class StopRequested:
    remove: bool = False  # forget the process afterwards


@dataclass(frozen=True, slots=True)
class StartRequested:
    """The process is to start again, after a stop or without waiting for the backoff."""


@dataclass(frozen=True, slots=True)
class TakeoverStarted:
    """The next generation was started."""


@dataclass(frozen=True, slots=True)
class HandedOver:
    """The next generation serves instead; this process finishes its open requests and ends by itself."""


@dataclass(frozen=True, slots=True)
class TakeoverFailed:
    """The next generation failed first; this process stays responsible."""


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
    | TakeoverStarted
    | HandedOver
    | TakeoverFailed
    | Ticked
)

Action = Literal["spawn", "terminate", "kill_group", "sweep_group"]
