"""Outcomes of one reconcile: the applier's result, the result of the whole pass, and the delay before the next. Pure.

    done        nothing to do                       next pass after `resync_s`, for drift and moved pointers
    refused     the new input is invalid; the last  the same: only a new input helps, and drift from the last good
                good one stays in force             one is still repaired
    waiting     something is under way              doubling from `poll_s` to `slowest_poll_s`
    passing     what failed may work later          doubling from `backoff.base_s` to its cap, with jitter; not before
                                                    the server's Retry-After
    contested   another manager owns the field      after `contested_s`: people may be resolving it
    stalled     it cannot work as it is             after `resync_s`: a permission may be granted, a kind installed

Any change of the input and any operator order ends the delay: a new revision never waits for an old one.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from functions.controller.kubernetes.errors import Conflict, KindMissing, KubeError
from functions.controller.kubernetes.health import Health
from functions.controller.kubernetes.inventory import Result
from functions.controller.kubernetes.objects import ObjectRef
from functions.controller.kubernetes.pruning import Note
from functions.decisions.health.backoff import BackoffPolicy, delay_s


@dataclass(frozen=True, slots=True)
class ObjectRefusal:
    """Reason why an object cannot be applied. A refusal in the dry run stops the pass before anything is applied."""

    ref: ObjectRef
    source: str  # place of its declaration
    error: KubeError

    @property
    def may_pass(self) -> bool:
        """True if the cause may go away without a new revision: a missing CRD, or a conflict with another manager."""
        return isinstance(self.error, (KindMissing, Conflict))

    def __str__(self) -> str:
        return f"{self.source}: {self.ref}: {self.error}" if self.source else f"{self.ref}: {self.error}"


@dataclass(frozen=True, slots=True)
class WaveGate:
    """Wave that must become healthy before the next one is applied."""

    wave: int
    unhealthy: tuple[tuple[ObjectRef, Health], ...]
    waited_s: float
    timed_out: bool

    def __str__(self) -> str:
        first = "; ".join(f"{ref}: {health.reason}: {health.message}" for ref, health in self.unhealthy[:3])
        more = f" and {len(self.unhealthy) - 3} more" if len(self.unhealthy) > 3 else ""
        return f"wave {self.wave} is not healthy after {self.waited_s:.0f} s: {first}{more}"


@dataclass(frozen=True, slots=True)
class ApplyOutcome:
    revision: str
    result: Result
    refusals: tuple[ObjectRefusal, ...] = ()
    gate: WaveGate | None = None
    written: tuple[ObjectRef, ...] = ()
    pruned: tuple[ObjectRef, ...] = ()  # deletion requested; a later pass no longer sees them
    prune_refused: str = ""
    notes: tuple[Note, ...] = ()
    health: Mapping[ObjectRef, Health] = field(default_factory=dict)

    @property
    def is_healthy(self) -> bool:
        """True if everything desired is applied and Current."""
        return self.result == "applied" and all(each.is_current for each in self.health.values())

    @property
    def stalled(self) -> str:
        """Problems that a person has to fix (refusals, a wave gate that timed out, a refused pruning), or empty if time
        may solve them."""
        if self.refusals:
            return "; ".join(str(refusal) for refusal in self.refusals)
        if self.gate is not None and self.gate.timed_out:
            return str(self.gate)
        return self.prune_refused


Kind = Literal["done", "refused", "waiting", "passing", "contested", "stalled"]
_WORST_LAST: tuple[Kind, ...] = ("done", "refused", "waiting", "contested", "stalled", "passing")


@dataclass(frozen=True, slots=True)
class PassResult:
    kind: Kind
    message: str = ""
    after_s: float | None = None  # the server's Retry-After


@dataclass(frozen=True, slots=True)
class ReconcileIntervals:
    resync_s: float = 300.0
    poll_s: float = 5.0
    slowest_poll_s: float = 30.0
    contested_s: float = 60.0
    backoff: BackoffPolicy = field(default_factory=lambda: BackoffPolicy(base_s=1.0, cap_s=120.0))


def next_pass_delay_s(result: PassResult, repeats: int, pace: ReconcileIntervals, unit: float) -> float:
    """Return the seconds until the next pass. `repeats` counts passes in a row that ended like this; `unit`: 0..1.

    Worked example (test_failure_interval_doubles_with_jitter): the third failure waits 4 s, less up to half of that.
    """
    match result.kind:
        case "done" | "refused" | "stalled":
            return pace.resync_s
        case "waiting":
            return delay_s(max(1, repeats), BackoffPolicy(base_s=pace.poll_s, cap_s=pace.slowest_poll_s))
        case "contested":
            return pace.contested_s
        case "passing":
            wait_s = delay_s(max(1, repeats), pace.backoff) * (1 - unit / 2)
            return max(wait_s, result.after_s or 0.0)


def combine_results(results: Iterable[PassResult]) -> PassResult:
    """Combine the results of several parts of one pass. The last kind in `_WORST_LAST` decides the delay: a failure
    that may pass is retried even if another part is stalled."""
    parts = list(results)
    worst = max(parts, key=lambda part: _WORST_LAST.index(part.kind))
    told = [part.message for part in parts if part.message and (part.kind != "done" or worst.kind == "done")]
    message = "; ".join(told)
    after_s = max((part.after_s or 0.0 for part in parts), default=0.0)
    return PassResult(worst.kind, message or worst.message, after_s or None)
