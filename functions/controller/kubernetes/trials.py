"""The dry run of everything: what the server would make of each desired object, before any of them is written.

A trial says whether there is something to write, and whether by force; a refusal says why an object cannot be applied.
All are tried, so that a person sees every refusal at once. What may pass by itself (`Retryable`) is no refusal: it ends
the whole reconcile, and the next one begins anew.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from functions.controller.kubernetes.api import KubeApi
from functions.controller.kubernetes.compare import dropped, is_converged
from functions.controller.kubernetes.conflicts import Policy, Repairs, not_ours
from functions.controller.kubernetes.desired import DesiredObject
from functions.controller.kubernetes.errors import Conflict, KindMissing, Terminal
from functions.controller.kubernetes.handover import body_for, seed_body
from functions.controller.kubernetes.objects import INFERENCE_SERVICE, Body, ObjectRef, is_being_deleted
from functions.controller.kubernetes.outcome import Refusal
from functions.controller.kubernetes.webhook_rules import mode_change


@dataclass(frozen=True, slots=True)
class Trial:
    wanted: DesiredObject
    live: Body | None
    writes: bool = False  # something would change
    force: bool = False  # fields are taken from a manager that only updated them

    @property
    def ref(self) -> ObjectRef:
        return self.wanted.ref


@dataclass(frozen=True, slots=True)
class Trials:
    """Owned by one applier, which outlives reconciles: `repairs` remembers what was taken by force."""

    api: KubeApi
    policy: Policy
    repairs: Repairs
    monotonic_s: Callable[[], float]

    def of(self, wanted: DesiredObject, live: Body | None) -> Trial | Refusal:
        """One object's dry run; Retryable, LeadershipLost."""
        if live is not None and is_being_deleted(live):
            return Trial(wanted, live)  # nothing to do until it is gone; health says so
        try:
            return self._tried(wanted, live)
        except (Conflict, Terminal, KindMissing) as error:
            return Refusal(wanted.ref, wanted.source, error)

    def _tried(self, wanted: DesiredObject, live: Body | None) -> Trial:
        if (
            live is not None
            and wanted.ref.kind == INFERENCE_SERVICE.kind
            and (reason := mode_change(wanted.body, live))
        ):
            raise Terminal(reason)
        body, force = body_for(wanted, live), False
        try:
            result = self.api.server_side_apply(body, dry_run=True)
        except Conflict as conflict:
            self._refuse_what_is_not_ours(conflict, wanted, live)
            force = True
            result = self.api.server_side_apply(body, dry_run=True, force=True)
        if unknown := dropped(body, result):
            raise Terminal(f"the API server does not know {', '.join(unknown)}, and would drop it")
        writes = live is None or not is_converged(live, result) or seed_body(wanted, live) is not None
        return Trial(wanted, live, writes, force)

    def _refuse_what_is_not_ours(self, conflict: Conflict, wanted: DesiredObject, live: Body | None) -> None:
        often = self.repairs.are_too_many(wanted.ref, self.monotonic_s())
        fields = not_ours(conflict, wanted, live, self.policy, repaired_often=often)
        if fields:
            whose = "; ".join(str(each) for each in fields)
            again = " (set again and again; is it a controller?)" if often else ""
            raise Conflict(f"other field managers want something else: {whose}{again}", fields)

    def note_applied(self, trial: Trial) -> None:
        if trial.force:
            self.repairs.note(trial.ref, self.monotonic_s())


def try_all(
    trials: Trials, objects: tuple[DesiredObject, ...], live: Mapping[ObjectRef, Body]
) -> tuple[list[Trial], list[Refusal]]:
    """Every object's trial, or its refusal."""
    tried: list[Trial] = []
    refused: list[Refusal] = []
    for wanted in objects:
        match trials.of(wanted, live.get(wanted.ref)):
            case Refusal() as refusal:
                refused.append(refusal)
            case Trial() as trial:
                tried.append(trial)
    trials.repairs.keep_only({wanted.ref for wanted in objects})
    return tried, refused
