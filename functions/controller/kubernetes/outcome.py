"""Outcome of one reconcile: values that become conditions, metrics and the next wait."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from functions.controller.kubernetes.errors import Conflict, KindMissing, KubeError
from functions.controller.kubernetes.health import Health
from functions.controller.kubernetes.inventory import Result
from functions.controller.kubernetes.objects import ObjectRef
from functions.controller.kubernetes.pruning import Note


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why an object cannot be applied; with one of these, nothing was."""

    ref: ObjectRef
    source: str  # where it was declared
    error: KubeError

    @property
    def may_pass(self) -> bool:
        """Somebody else may mend it: install the CRD, let go of a field. Worth trying again without a new revision."""
        return isinstance(self.error, (KindMissing, Conflict))

    def __str__(self) -> str:
        return f"{self.source}: {self.ref}: {self.error}" if self.source else f"{self.ref}: {self.error}"


@dataclass(frozen=True, slots=True)
class Gate:
    """The wave whose health the next one waits for."""

    wave: int
    unhealthy: tuple[tuple[ObjectRef, Health], ...]
    waited_s: float
    timed_out: bool

    def __str__(self) -> str:
        first = "; ".join(f"{ref}: {health.reason}: {health.message}" for ref, health in self.unhealthy[:3])
        more = f" and {len(self.unhealthy) - 3} more" if len(self.unhealthy) > 3 else ""
        return f"wave {self.wave} is not healthy after {self.waited_s:.0f} s: {first}{more}"


@dataclass(frozen=True, slots=True)
class Outcome:
    revision: str
    result: Result
    refusals: tuple[Refusal, ...] = ()
    gate: Gate | None = None
    written: tuple[ObjectRef, ...] = ()
    pruned: tuple[ObjectRef, ...] = ()  # asked to go; gone when a later reconcile no longer sees them
    prune_refused: str = ""
    notes: tuple[Note, ...] = ()
    health: Mapping[ObjectRef, Health] = field(default_factory=dict)

    @property
    def is_healthy(self) -> bool:
        """Everything desired is applied and Current."""
        return self.result == "applied" and all(each.is_current for each in self.health.values())

    @property
    def stalled(self) -> str:
        """What a person has to mend; empty where time will."""
        if self.refusals:
            return "; ".join(str(refusal) for refusal in self.refusals)
        if self.gate is not None and self.gate.timed_out:
            return str(self.gate)
        return self.prune_refused
