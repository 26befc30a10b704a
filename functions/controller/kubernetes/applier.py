"""Reconcile once: bring the live state to the desired one, or report why not. Level-triggered.

Order of a pass: 1. read the record, 2. list the live objects, 3. dry-run every object; one refusal stops the pass, 4.
list the objects in the inventory before they are created, 5. apply wave by wave, each after the earlier ones are
healthy, 6. delete what is no longer desired, 7. write the record.

A pass never waits. If a wave is not healthy yet, the pass ends with `waiting`, and the next pass resumes from the
live state. A new revision therefore replaces one that waits. A controller killed at any request leaves nothing that
the next pass does not find. A converged fleet costs no write.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import groupby

import msgspec

from functions.controller.kubernetes.api import KubeApi
from functions.controller.kubernetes.dry_runs import DryRun, DryRuns, try_all
from functions.controller.kubernetes.errors import Conflict, KindMissing, Stale, Terminal
from functions.controller.kubernetes.health import JUST_WRITTEN, Health, is_shortened
from functions.controller.kubernetes.inventory import (
    InventoryEntry,
    InventoryRecord,
    ReconcileAttempt,
    RecordStore,
    Result,
    WaitingWave,
)
from functions.controller.kubernetes.objects import (
    AUTOSCALER_MANAGER,
    FIELD_MANAGER,
    INFERENCE_SERVICE,
    Body,
    Kind,
    ObjectRef,
    uid_of,
    value_at,
    version_of,
)
from functions.controller.kubernetes.observation import observe, observe_children
from functions.controller.kubernetes.outcome import ApplyOutcome, ObjectRefusal, WaveGate
from functions.controller.kubernetes.ownership import Policy, Repairs, body_for, declares, seed_body
from functions.controller.kubernetes.pruning import Note, plan_prune
from functions.controller.kubernetes.render import Desired, DesiredObject


@dataclass(frozen=True, slots=True)
class ApplierSettings:
    models_namespace: str = "shoal-models"  # listed even if nothing is desired there
    conflicts: Policy = "report"
    gate_timeout_s: float = 1800.0  # time for a wave to become healthy


class Applier:
    """Applier of one term, used by one thread. It remembers forced repairs from pass to pass."""

    def __init__(
        self,
        api: KubeApi,
        store: RecordStore,
        settings: ApplierSettings,
        *,
        unix_s: Callable[[], float] = time.time,
        monotonic_s: Callable[[], float] = time.monotonic,
        may_prune: Callable[[], bool] = lambda: True,
        unpublished: Callable[[], str] = lambda: "",
    ) -> None:
        """`may_prune` returns True once nothing routes to undesired objects. `unpublished` returns why a revision is
        not in force although all of its objects are written, or an empty text."""
        self._may_prune = may_prune
        self._unpublished = unpublished
        self._api = api
        self._store = store
        self._settings = settings
        self._unix_s = unix_s
        self._dry_runs = DryRuns(api, settings.conflicts, Repairs(), monotonic_s)

    def reconcile(self, desired: Desired) -> ApplyOutcome:
        """Run one pass. Raises Retryable (later), Stale (now), LeadershipLost (stop), Terminal (a bad record)."""
        work = _Pass(self._api, self._store, self._settings, self._dry_runs, desired, self._unix_s)
        work.observe_live()
        tried, refusals = try_all(self._dry_runs, desired.objects, work.live)
        if refusals:
            return work.end_refused(refusals)
        work.list_before_creating(tried)
        try:
            gate = work.apply_waves(tried)
        except (Terminal, KindMissing) as error:  # rare: the dry run passed and the write failed
            return work.end_refused([ObjectRefusal(work.applying.ref, work.applying.source, error)])
        if gate is not None:
            return work.end_waiting(gate)
        if self._may_prune():
            work.prune()
        unpublished = self._unpublished()
        return work.end_unpublished(unpublished) if unpublished else work.end_applied()


@dataclass(slots=True)
class _Pass:
    """State and results of one pass."""

    api: KubeApi
    store: RecordStore
    settings: ApplierSettings
    dry_runs: DryRuns
    desired: Desired
    unix_s: Callable[[], float]
    applying: DesiredObject = field(init=False)
    began_unix_s: float = 0.0
    live: dict[ObjectRef, Body] = field(default_factory=dict)
    written: list[ObjectRef] = field(default_factory=list)
    fresh: set[ObjectRef] = field(default_factory=set)  # written with a new generation in this pass
    pruned: list[ObjectRef] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    prune_refused: str = ""
    _record: InventoryRecord = field(default_factory=InventoryRecord)  # to be written
    _stored: InventoryRecord = field(default_factory=InventoryRecord)  # as stored on the cluster

    # -- 1, 2: observing ---------------------------------------------------------------------------------------------

    def observe_live(self) -> None:
        self.began_unix_s = self.unix_s()
        self._record = self._stored = self.store.read()
        namespaces = {self.settings.models_namespace}
        namespaces |= {each.ref.namespace for each in self.desired.objects}
        namespaces |= {entry.namespace for entry in self._record.entries}
        self.live = observe(self.api, [(kind, each) for kind in self.desired.kinds for each in namespaces])

    # -- 4, 5: applying ----------------------------------------------------------------------------------------------

    def list_before_creating(self, tried: list[DryRun]) -> None:
        """Put every desired object into the inventory, whether it exists or not. Save the record if an object will be
        created, a service is shortened, or the record is another leader's or of another attempt."""
        entries = self._record.by_ref
        for dry_run in tried:
            ref, wanted, found = dry_run.ref, dry_run.wanted, self.live.get(dry_run.ref)
            uid = uid_of(found) if found is not None else ""  # empty: pruning accepts the object that will be created
            known = entries.get(ref)
            new, outdated = (known.new, known.outdated) if known is not None else (True, "")
            entries[ref] = InventoryEntry(
                ref.group, ref.kind, ref.namespace, ref.name, uid, wanted.wave, wanted.keep, new, outdated
            )
        marked = self._mark_outdated(tried, entries)
        self._record = self._record.with_entries(entries)
        if any(dry_run.writes for dry_run in tried) and not self._record.is_last_good(self.desired.revision):
            self._record = replace(self._record, last_attempted=self.desired.revision)
        creates = any(dry_run.live is None for dry_run in tried)
        if (
            creates
            or marked
            or self._stored.token != self.api.token
            or self._stored.last_attempted != self._record.last_attempted
        ):
            self._save_record()

    def _mark_outdated(self, tried: list[DryRun], entries: dict[ObjectRef, InventoryEntry]) -> bool:
        """Put into `entries` the fingerprints of children whose old arguments could pass for the new ones. Return True
        if the arguments of any service are shortened."""
        shortened = [
            dry_run
            for dry_run in tried
            if dry_run.writes and dry_run.live is not None and is_shortened(dry_run.live, dry_run.wanted.body)
        ]
        if not shortened:
            return False
        children = observe_children(self.api, [dry_run.live for dry_run in shortened if dry_run.live is not None])
        for dry_run in shortened:
            if (mark := children.outdated_fingerprint(dry_run.live, dry_run.wanted.body)) is not None:
                entries[dry_run.ref] = msgspec.structs.replace(entries[dry_run.ref], outdated=mark)
        return True

    def apply_waves(self, tried: list[DryRun]) -> WaveGate | None:
        """Write wave by wave, each only if all objects of earlier waves are healthy. Return the gate that stopped the
        pass, or None if everything is written."""
        last = max((dry_run.wanted.wave for dry_run in tried if dry_run.writes), default=None)
        for wave, dry_runs in groupby(tried, key=lambda dry_run: dry_run.wanted.wave):
            for dry_run in dry_runs:
                if dry_run.writes:
                    self._apply(dry_run)
            if last is None or wave >= last:
                continue  # nothing more to write: no reason to wait
            health = self._health()
            up_to_here = [dry_run.ref for dry_run in tried if dry_run.wanted.wave <= wave]
            unhealthy = tuple((ref, health[ref]) for ref in up_to_here if not health[ref].is_current)
            if unhealthy:
                return self._gate(wave, unhealthy)
        return None

    def _apply(self, dry_run: DryRun) -> None:
        """Write one object, with up to three requests; raise Stale if another manager wrote since the dry run. After
        each request the next pass can continue (see the handover in `ownership`)."""
        live, wanted = dry_run.live, dry_run.wanted
        self.applying = wanted
        try:
            if live is None:
                live = self.api.server_side_apply(body_for(wanted, None))
            seed = seed_body(wanted, live)
            if seed is not None:
                live = self.api.server_side_apply(seed, manager=AUTOSCALER_MANAGER)
            if seed is not None or dry_run.live is not None:
                live = self.api.server_side_apply(body_for(wanted, live), force=dry_run.force)
        except Conflict as conflict:  # not in the dry run: another manager wrote since
            raise Stale(str(conflict)) from conflict
        self.dry_runs.note_applied(dry_run)
        if dry_run.live is None or value_at(dry_run.live, "metadata", "generation") != value_at(
            live, "metadata", "generation"
        ):
            self.fresh.add(dry_run.ref)
        self.live[dry_run.ref] = live
        self.written.append(dry_run.ref)

    def _gate(self, wave: int, unhealthy: tuple[tuple[ObjectRef, Health], ...]) -> WaveGate:
        waiting = self._record.waiting
        if waiting is None or (waiting.revision, waiting.wave) != (self.desired.revision, wave):
            waiting = WaitingWave(self.desired.revision, wave, self.unix_s())
            self._record = replace(self._record, waiting=waiting)
        waited_s = max(0.0, self.unix_s() - waiting.since_unix_s)
        return WaveGate(wave, unhealthy, waited_s, timed_out=waited_s > self.settings.gate_timeout_s)

    # -- 6: pruning --------------------------------------------------------------------------------------------------

    def prune(self) -> None:
        plan = plan_prune(self._record, self.desired, self.live)
        self.notes += plan.notes
        self.prune_refused = plan.refused
        if plan.delete:
            self._save_record()  # the record must carry our token before a deletion
        for ref, found in plan.delete:
            self._delete(ref, found)
        entries = {ref: entry for ref, entry in self._record.by_ref.items() if ref not in plan.forget}
        if not plan.delete and not plan.refused:  # nothing is left to prune
            entries = {ref: msgspec.structs.replace(entry, new=False) for ref, entry in entries.items()}
        self._record = self._record.with_entries(entries)

    def _delete(self, ref: ObjectRef, found: Body) -> None:
        kind = self._kind_of(ref)
        try:
            self.api.delete(kind, ref.namespace, ref.name, uid=uid_of(found), resource_version=version_of(found))
            self.pruned.append(ref)
        except (Terminal, KindMissing) as error:  # the object stays in the inventory; the next pass retries
            self.prune_refused = str(error)

    def _kind_of(self, ref: ObjectRef) -> Kind:
        return next(kind for kind in self.desired.kinds if (kind.group, kind.kind) == (ref.group, ref.kind))

    # -- 7: recording ------------------------------------------------------------------------------------------------

    def end_refused(self, refusals: list[ObjectRefusal]) -> ApplyOutcome:
        return self._end("refused", refusals=tuple(refusals), message="; ".join(str(each) for each in refusals))

    def end_waiting(self, gate: WaveGate) -> ApplyOutcome:
        self._record_uids()
        waits_for = ", ".join(str(ref) for ref, _ in gate.unhealthy)
        return self._end("waiting", gate=gate, message=f"wave {gate.wave} is not healthy: {waits_for}")

    def end_unpublished(self, unpublished: str) -> ApplyOutcome:
        self._record_uids()
        self._record = replace(self._record, waiting=None)
        return self._end("waiting", message=unpublished)

    def end_applied(self) -> ApplyOutcome:
        self._record_uids()
        self._record = replace(self._record, last_applied=self.desired.revision, waiting=None)
        return self._end("applied", message=self.prune_refused)

    def _end(
        self, result: Result, *, message: str, refusals: tuple[ObjectRefusal, ...] = (), gate: WaveGate | None = None
    ) -> ApplyOutcome:
        now_unix_s = self.unix_s()
        attempt = ReconcileAttempt(self.desired.revision, result, now_unix_s, now_unix_s - self.began_unix_s, message)
        self._record = self._record.with_attempt(attempt)
        self._save_record()
        return ApplyOutcome(
            revision=self.desired.revision,
            result=result,
            refusals=refusals,
            gate=gate,
            written=tuple(self.written),
            pruned=tuple(self.pruned),
            prune_refused=self.prune_refused,
            notes=(*self.notes, *self._unlisted_objects()),
            health=self._health(),
        )

    def _record_uids(self) -> None:
        entries = self._record.by_ref
        for ref, entry in entries.items():
            found = self.live.get(ref)
            if found is not None and not entry.uid:
                entries[ref] = msgspec.structs.replace(entry, uid=uid_of(found))
        self._record = self._record.with_entries(entries)

    def _save_record(self) -> None:
        """Write the record if it differs from the stored one, or if an earlier leader wrote that."""
        wanted = replace(self._record, token=self.api.token)
        same = replace(wanted, resource_version="", uid="") == replace(self._stored, resource_version="", uid="")
        if not same:
            self._record = self._stored = self.store.write(wanted)

    def _unlisted_objects(self) -> list[Note]:
        """Return notes on objects that we apply but that are neither desired nor in the inventory."""
        known = {entry.ref for entry in self._record.entries} | {each.ref for each in self.desired.objects}
        message = (
            "is applied by the controller, but neither desired nor in the inventory; delete it if it is not needed"
        )
        return [
            Note(ref, message)
            for ref, found in sorted(self.live.items())
            if ref not in known and declares(found, FIELD_MANAGER)
        ]

    def _health(self) -> dict[ObjectRef, Health]:
        refs = [each.ref for each in self.desired.objects]
        services = [self.live[ref] for ref in refs if ref.kind == INFERENCE_SERVICE.kind and ref in self.live]
        children, entries = observe_children(self.api, services), self._record.by_ref
        return {
            ref: JUST_WRITTEN
            if ref in self.fresh and ref.kind == INFERENCE_SERVICE.kind
            else children.health_of(self.live.get(ref), entries[ref].outdated if ref in entries else "")
            for ref in refs
        }
