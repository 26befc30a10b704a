"""Reconcile the Kubernetes source: what the watches show becomes the published snapshot, budgets, and statuses.

Order of a pass: 1. read the watches, 2. publish the valid objects, 3. write a budget for each pool, 4. submit
statuses and finalizers, which a writer sends at a limited rate. Other tools deliver the InferenceServices, so they
are never written. If a publication fails, the data plane stays as it is, and affected objects' statuses say so.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence

import orjson

from functions.api.kinds.base import API_VERSION
from functions.api.kinds.catalogue import OUR_KINDS
from functions.api.kinds.inference_service import POOL_SERVICES, InferenceService
from functions.api.schema.crd import plural
from functions.controller.kubernetes.api import KubeApi
from functions.controller.kubernetes.applier import Applier, ApplierSettings
from functions.controller.kubernetes.errors import KubeError, LeadershipLost
from functions.controller.kubernetes.inventory import RecordStore
from functions.controller.kubernetes.objects import BUDGET, BUDGET_OF_OLD_CLUSTERS, INFERENCE_SERVICE, Body
from functions.controller.kubernetes.outcome import ApplyOutcome, PassResult, combine_results
from functions.controller.kubernetes.render import render_budgets
from functions.controller.kubernetes.run.branch_reporter import report_of_objects
from functions.controller.kubernetes.run.conditions import ScalingStatus
from functions.controller.kubernetes.run.cr_source import CustomResources, ObservedResources
from functions.controller.kubernetes.run.elector import TermGuard
from functions.controller.kubernetes.run.event_notes import EventNote
from functions.controller.kubernetes.run.informer import Informer, WatchedKind
from functions.controller.kubernetes.run.last_good import object_name
from functions.controller.kubernetes.run.obedience import ObedienceFindings
from functions.controller.kubernetes.run.object_store import WatchedObject
from functions.controller.kubernetes.run.publishing import Publishing, publication_result
from functions.controller.kubernetes.run.settings import KubernetesSettings
from functions.controller.kubernetes.run.status_writer import StatusWriter
from functions.controller.kubernetes.run.watch_client import WatchClient
from functions.controller.kubernetes.run.writes import PublicationState, writes_after
from functions.controller.rollouts.merging import without_api
from functions.controller.snapshot.publish import PublishOutcome
from functions.controller.snapshot.registry_client import RegistryRefused, RegistryUnavailable
from functions.fleet.branch_report import BranchReport

PLURALS = {kind.__name__: plural(kind.__name__) for kind in OUR_KINDS}


def watched_kinds(settings: KubernetesSettings) -> tuple[WatchedKind, ...]:
    ours = tuple(WatchedKind(API_VERSION, kind, name, settings.namespace) for kind, name in PLURALS.items())
    service = INFERENCE_SERVICE
    pools = WatchedKind(
        service.api_version, service.kind, "inferenceservices", settings.models_namespace, label_selector=POOL_SERVICES
    )
    return (*ours, pools)


class CustomResourceReconciler:
    """Reconciler of the Kubernetes source, owned by one event loop. Its `informers` run in their own threads."""

    def __init__(
        self,
        settings: KubernetesSettings,
        client: WatchClient,
        publishing: Publishing,
        on_change: Callable[[], None],
        *,
        scaling: Callable[[], Mapping[str, ScalingStatus]] = dict,
        judgement: Callable[[], ObedienceFindings] = ObedienceFindings,
        on_notes: Callable[[Iterable[EventNote]], None] = lambda _: None,
    ) -> None:
        """`scaling` returns each AutoscalingPolicy's status by name, `judgement` the policies that are not obeyed.
        `on_notes` receives Events for new statements of statuses."""
        self.informers: Sequence[Informer] = [
            Informer(client, watched, on_change) for watched in watched_kinds(settings)
        ]
        self.looked: ObservedResources | None = None
        self.writer = StatusWriter(self.find_object, per_second=settings.status_writes_per_s, on_written=on_notes)
        self._settings = settings
        self._publishing = publishing
        self._scaling = scaling
        self._judgement = judgement
        self._source = CustomResources(self.informers)
        self._by_plural = {informer.watched.plural: informer for informer in self.informers}
        self._appliers: tuple[KubeApi, Applier] | None = None
        self._unpublished = ""  # why the observed objects are not in force
        self._remembered_for = 0  # token of the term whose snapshot in force was read

    def branch_report(self) -> BranchReport:
        """Return the report for the console about the cluster's objects and the revision in force."""
        published = self._publishing.published
        return report_of_objects(self.looked, published[0] if published is not None else "")

    def not_ready_reason(self) -> str:
        """Return the problems of the watches that have not listed their objects yet, or an empty text."""
        return "; ".join(informer.problem for informer in self.informers if not informer.store.synced)

    async def reconcile(self, guard: TermGuard, api: KubeApi) -> PassResult:
        unknown = await self._load_published_snapshot(guard)
        looked = self.looked = await asyncio.to_thread(self._source.observe)
        if looked.waiting:
            return PassResult(
                "waiting", f"nothing is published before every kind is listed: {'; '.join(looked.waiting)}"
            )
        guard.check()
        outcome = unknown or await self._publishing.publish(looked.loaded, looked.revision)
        self._unpublished = "" if self._is_in_force(outcome, looked) else f"it is not published: {outcome.message}"
        results = [publication_result(outcome), await self._budgets(api, looked)]
        publication = _publication(outcome)
        protect = self._settings.protect_deletion
        self.writer.keep_only(looked.seen)
        writes = writes_after(
            looked, publication, protect=protect, scaling=self._scaling(), judgement=self._judgement()
        )
        self.writer.submit(writes)
        return combine_results([*results, *_refusals(looked)])

    def _is_in_force(self, outcome: PublishOutcome, looked: ObservedResources) -> bool:
        """Return True if the revision is published. An earlier pass counts while the registry is away."""
        known = self._publishing.published
        return outcome.kind in ("published", "unchanged") or (known is not None and known[0] == looked.revision)

    async def _load_published_snapshot(self, guard: TermGuard) -> PublishOutcome | None:
        """Load the snapshot in force once per term, for objects that were invalid before this term. Return an outcome
        if it cannot be read: publishing without it would take last good versions out of force."""
        if self._remembered_for == guard.token:
            return None
        try:
            in_force = await self._publishing.registry.current()
        except RegistryUnavailable as error:
            return PublishOutcome("unavailable", f"the snapshot in force cannot be read: {error}")
        except RegistryRefused as error:
            return PublishOutcome("refused", f"the snapshot in force cannot be read: {error}")
        rows = self._publishing.rows
        await rows.fetch_changes()  # after the snapshot: a key minted just before must not pass for a Tenant's own
        if not rows.book.is_known:
            return PublishOutcome("unavailable", f"nothing is published without the registry's rows: {rows.trouble}")
        if in_force is not None:
            self._source.set_published(without_api(in_force, rows.book))
        self._remembered_for = guard.token
        return None

    async def _budgets(self, api: KubeApi, looked: ObservedResources) -> PassResult:
        try:
            outcome = await asyncio.to_thread(self._apply_budgets, api, looked)
        except LeadershipLost:
            raise
        except KubeError as error:
            return PassResult("passing", str(error), getattr(error, "after_s", None))
        return result_of_apply(outcome)

    def _apply_budgets(self, api: KubeApi, looked: ObservedResources) -> ApplyOutcome:
        kind = BUDGET if api.serves(BUDGET) else BUDGET_OF_OLD_CLUSTERS
        desired = render_budgets(
            looked.loaded.objects_of(InferenceService),
            looked.revision,
            namespace=self._settings.models_namespace,
            budget_kind=kind,
            left_out=_left_out(looked),
        )
        return self._applier(api).reconcile(desired)

    def _applier(self, api: KubeApi) -> Applier:
        if self._appliers is None or self._appliers[0] is not api:
            settings = ApplierSettings(
                self._settings.models_namespace, self._settings.conflicts, self._settings.gate_timeout_s
            )
            store = RecordStore(api, self._settings.namespace)
            self._appliers = (api, Applier(api, store, settings, unpublished=lambda: self._unpublished))
        return self._appliers[1]

    def find_object(self, key: str) -> WatchedObject | None:
        """Return an object by its key `PLURAL/NAME` as the watch shows it now, or None."""
        plural, _, name = key.partition("/")
        informer = self._by_plural.get(plural)
        return informer.store.get(name) if informer is not None else None


def result_of_apply(outcome: ApplyOutcome) -> PassResult:
    if outcome.result == "refused":
        may_pass = all(refusal.may_pass for refusal in outcome.refusals)
        return PassResult("contested" if may_pass else "stalled", outcome.stalled)
    if outcome.stalled:
        return PassResult("contested", outcome.stalled)
    if outcome.gate is not None:
        return PassResult("waiting", str(outcome.gate))
    return PassResult("done")


def _left_out(looked: ObservedResources) -> list[Body]:
    """Return services that are invalid for shoal but still run; they keep their budgets."""
    in_force = {service.document.file for service in looked.loaded.objects_of(InferenceService)}
    return [
        orjson.loads(one.stored.document)
        for key, one in looked.seen.items()
        if one.watched.kind == INFERENCE_SERVICE.kind and key not in in_force and not one.stored.deleting
    ]


def _publication(outcome: PublishOutcome) -> PublicationState:
    in_force = outcome.kind in ("published", "unchanged")
    reason = {"unavailable": "RegistryUnavailable", "refused": "SnapshotRefused"}.get(outcome.kind, "NotPublished")
    rollouts = {f"{PLURALS['Model']}/{object_name(row.model)}": row for row in outcome.rollouts}
    left_out, refused = _by_key(outcome.problems), _by_key(outcome.refused)
    return PublicationState(in_force, reason, outcome.message, left_out, rollouts, refused)


def _by_key(problems: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for problem in problems:
        key, separator, message = problem.partition(": ")
        if separator and "/" in key and "://" not in key:
            found[key] = f"{found[key]}; {message}" if key in found else message
    return found


def _refusals(looked: ObservedResources) -> list[PassResult]:
    """Return one `refused` result that counts the invalid objects, or none if all are valid. They stall no others, and
    only their change helps."""
    first = next(iter(looked.problems), "")
    return (
        [PassResult("refused", f"{len(looked.refusals)} object(s) refused; the first: {first}")]
        if looked.refusals
        else []
    )
