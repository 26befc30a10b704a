"""Reconcile the git source: a branch's tip becomes InferenceServices, budgets and the published snapshot.

Order of a pass: 1. read the fetched tip, 2. apply (after a dry run of everything; one refused object stops it), 3.
publish, 4. prune. So nothing is published that the API server would refuse, and quotas do not wait for models to
load. No pool is deleted before the snapshot that no longer routes to it is published.

A tip that does not validate, or that the API server refuses, changes nothing: the last good revision stays in force,
and drift from it is repaired. An unavailable remote costs only freshness.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial

from functions.api.ids import RolloutId
from functions.controller.gitops.branch import FollowedBranch, Revision
from functions.controller.gitops.git import GitFailed, Remote
from functions.controller.gitops.source import GitSource, Observed
from functions.controller.kubernetes.api import KubeApi
from functions.controller.kubernetes.applier import Applier, ApplierSettings
from functions.controller.kubernetes.errors import KubeError, LeadershipLost, Retryable, Terminal
from functions.controller.kubernetes.inventory import RECORD_NAME, InventoryRecord, ReconcileAttempt, RecordStore
from functions.controller.kubernetes.objects import BUDGET, BUDGET_OF_OLD_CLUSTERS, CONFIG_MAP
from functions.controller.kubernetes.outcome import ApplyOutcome, PassResult, combine_results
from functions.controller.kubernetes.render import Desired, Rendered, render
from functions.controller.kubernetes.run.branch_reporter import report_of_git
from functions.controller.kubernetes.run.cr_reconciler import result_of_apply
from functions.controller.kubernetes.run.elector import TermGuard
from functions.controller.kubernetes.run.event_notes import (
    EventNote,
    Regarding,
    notes_of_history,
    notes_of_rollouts,
)
from functions.controller.kubernetes.run.publishing import Publishing, publication_result
from functions.controller.kubernetes.run.settings import KubernetesSettings
from functions.controller.kubernetes.run.status_writer import release_finalizers
from functions.controller.kubernetes.run.version_reconciler import VersionReconciler
from functions.decisions.rollout.lifecycle import Rollout
from functions.fleet.branch_report import BranchReport

_NAMED_MAX = 3
_NOT_YET = "its objects are written, and it is not published yet"
_FETCH_APART_S = 1.0  # at least, however many pushes are announced

_log = logging.getLogger(__name__)


class GitReconciler:
    """Reconciler of the git source, owned by one event loop."""

    def __init__(
        self,
        settings: KubernetesSettings,
        publishing: Publishing,
        on_change: Callable[[], None],
        on_notes: Callable[[Iterable[EventNote]], None] = lambda _: None,
        *,
        versions: VersionReconciler | None = None,
    ) -> None:
        """`on_notes` receives Events about revisions and rollouts. `versions` moves bases with several versions."""
        self._versions = versions
        self._on_notes = on_notes
        self.record: Regarding | None = None  # the controller's record, once it exists: Events are about it
        self._record = InventoryRecord()  # from the last pass
        self._history: tuple[ReconcileAttempt, ...] = ()  # from the last pass, or from the start of the term
        self._rollouts: dict[RolloutId, Rollout] = {}  # the same
        self._settings = settings
        self._publishing = publishing
        self._on_change = on_change
        remote = Remote(
            settings.git_url,
            settings.git_branch,
            settings.git_askpass_file,
            settings.git_ssh_command,
            settings.git_ca_file,
        )
        source = GitSource(settings.git_dir, settings.git_branch)
        self._branch = FollowedBranch(source, fetch=partial(remote.fetch, settings.git_dir))
        self._branch.trouble = "the branch was not read yet"
        self._looked_for = 0  # token of the term in which the tip was found not to be older than what was applied
        self.refused = 0  # invalid objects, or invalid files of a commit
        self._wanted: Revision | None = None
        self._good: Revision | None = None  # the last one that the API server accepted
        self._applying = ""  # the revision
        self._published = ""  # revision that this term published
        self._in_force = ""  # revision that an earlier term recorded as applied
        self._why_unpublished = ""  # why `_applying` is not in force
        self._appliers: tuple[KubeApi, Applier] | None = None

    def branch_report(self) -> BranchReport:
        """Return the report for the console about the followed branch and the record's history."""
        branch, desired = self._branch, self._wanted.name if self._wanted is not None else ""
        return report_of_git(branch.name, branch.tip, desired, branch.trouble, self._record)

    def not_ready_reason(self) -> str:
        return self._branch.trouble if self._branch.tip is None else ""

    async def follow_branch(self) -> None:
        """Fetch the branch every `git_poll_s` and when requested until cancelled, and call `on_change` when its tip
        changes."""
        every_s = self._settings.git_poll_s
        await self._fetch_and_notify()
        await self._branch.watch(self._fetch_and_notify, every_s, min(_FETCH_APART_S, every_s))

    def fetch_soon(self) -> None:
        """Request a fetch after a push. `follow_branch` fetches as soon as it may, once for all requests in between."""
        self._branch.wake()

    async def fetch_tip(self) -> None:
        """Fetch and read the tip; if that fails, the previous one stays."""
        with contextlib.suppress(GitFailed):  # kept in the branch's `trouble`
            await self._branch.refresh_tip()

    async def _fetch_and_notify(self) -> None:
        before = self._branch.tip
        await self.fetch_tip()
        tip = self._branch.tip
        if before is None or tip is None or before.commit != tip.commit:
            self._on_change()

    async def reconcile(self, guard: TermGuard, api: KubeApi) -> PassResult:
        store = RecordStore(api, self._settings.namespace)
        if guard.token != self._looked_for:  # start of a term: an earlier leader's state
            told = await asyncio.to_thread(store.read)
            self._history, self._in_force, self._rollouts = told.history, told.last_applied, self._known_rollouts()
        result = await self._reconcile(guard, api)
        try:
            self._record_events(await asyncio.to_thread(store.read))
        except (Retryable, Terminal) as error:
            _log.debug("Events about the revision are recorded by the next pass: %s", error)
        return result

    def _record_events(self, record: InventoryRecord) -> None:
        """Keep the record for the next pass, and record Events for what is new in it and in rollouts; no Events until
        the record exists."""
        self._record = record
        if record.uid:
            about = self.record = Regarding(CONFIG_MAP, self._settings.namespace, RECORD_NAME, record.uid)
            rollouts = self._known_rollouts()
            self._on_notes(notes_of_history(about, self._history, record.history))
            self._on_notes(notes_of_rollouts(about, self._rollouts, rollouts))
            self._history, self._rollouts = record.history, rollouts

    def _known_rollouts(self) -> dict[RolloutId, Rollout]:
        return {row.id: row for row in self._publishing.rows.book.rollouts}

    async def _reconcile(self, guard: TermGuard, api: KubeApi) -> PassResult:
        if guard.token != self._looked_for:
            if ahead := await self._reason_behind(api):
                return PassResult("waiting", ahead)
            await self._release_finalizers(api)
            self._looked_for, self._published = guard.token, ""
        tip = self._branch.tip
        if tip is None:
            return PassResult("waiting", self._branch.trouble)
        refused = self._adopt(tip)
        self.refused = len({problem.place.file for problem in self._branch.refused})
        if refused:
            await self._record_refusal(api, self._branch.revision_of(tip), refused.message)
        if self._wanted is None and refused:
            await self._fall_back(api)
        wanted = self._wanted
        if wanted is None:
            return refused or PassResult("waiting", self._branch.trouble)
        kept = [PassResult("refused", refused.message)] if refused else []
        result, taken = await self._converge(guard, api, wanted)
        if taken:
            self._good = wanted
        elif self._good is not None and self._good is not wanted:
            kept.append(result if result.kind == "contested" else PassResult("refused", result.message))
            result, _ = await self._converge(guard, api, self._good)
        return combine_results([result, *kept])

    async def _release_finalizers(self, api: KubeApi) -> None:
        """Remove our finalizers from custom resources, which are no source here. The next term retries a failure."""
        try:
            released = await asyncio.to_thread(release_finalizers, api, self._settings.namespace)
        except LeadershipLost:
            raise
        except KubeError as error:
            _log.warning(
                "the finalizers of the kubernetes source could not be removed from custom resources: %s", error
            )
            return
        if released:
            _log.info("%d custom resources from before the git source may be deleted", released)

    def _adopt(self, tip: Observed) -> PassResult | None:
        """Make a valid tip the wanted revision; otherwise return why it is not."""
        revision = self._branch.judge_commit(tip)
        if revision is None:
            problems = self._branch.refused
            first = "; ".join(str(problem) for problem in problems[:_NAMED_MAX])
            return PassResult("stalled", f"{self._branch.revision_of(tip)} has {len(problems)} problem(s): {first}")
        if self._wanted is None or self._wanted.name != revision.name:
            self._wanted = revision
            _log.info("%s: %s", revision.name, revision.message)
        return None

    async def _record_refusal(self, api: KubeApi, revision: str, message: str) -> None:
        attempt = ReconcileAttempt(revision, "refused", time.time(), message=message)
        await asyncio.to_thread(self._record_attempt, api, attempt)

    def _record_attempt(self, api: KubeApi, attempt: ReconcileAttempt) -> None:
        """Write the attempt into the record once, for people that look for the result of a push. Blocks."""
        store = RecordStore(api, self._settings.namespace)
        record = store.read()
        told = replace(record.with_attempt(attempt), last_attempted=attempt.revision)
        if told != record:
            store.write(told)

    async def _reason_behind(self, api: KubeApi) -> str:
        """Return, at the start of a term, why the local tip may be older than the applied revision; else an empty
        text. A standby that could not fetch for a week must not set the fleet back by a week."""
        await self.fetch_tip()
        if not self._branch.trouble or self._branch.tip is None:
            return ""
        record = await asyncio.to_thread(RecordStore(api, self._settings.namespace).read)
        if not record.last_applied or await self._branch.has_revision(record.last_applied):
            return ""
        return f"{record.last_applied} was applied and is newer than what was fetched here: {self._branch.trouble}"

    async def _fall_back(self, api: KubeApi) -> None:
        """Make the revision that an earlier leader applied last the wanted one; none is wanted if the clone no longer
        has it."""
        record = await asyncio.to_thread(RecordStore(api, self._settings.namespace).read)
        if record.last_applied:
            self._wanted = await self._branch.load_revision(record.last_applied)

    async def _converge(self, guard: TermGuard, api: KubeApi, wanted: Revision) -> tuple[PassResult, bool]:
        """Apply and publish the revision. Return the result, and True if the API server accepted the objects."""
        if self._applying != wanted.name:
            self._applying, self._why_unpublished = wanted.name, _NOT_YET
        rendered = await asyncio.to_thread(self._render, api, wanted)
        if rendered.problems:
            first = "; ".join(str(problem) for problem in rendered.problems[:_NAMED_MAX])
            message = f"{wanted.name}: KServe would refuse it for {len(rendered.problems)} problem(s): {first}"
            self.refused += len({problem.place.file for problem in rendered.problems})
            await self._record_refusal(api, wanted.name, message)
            return PassResult("stalled", message), False
        outcome = await self._apply_in_turn(api, wanted, rendered.desired)
        if outcome.result == "refused":
            self.refused += len(outcome.refusals)
            return result_of_apply(outcome), False
        guard.check()
        publication = await self._publishing.publish(wanted.loaded, wanted.name)
        is_published = publication.kind in ("published", "unchanged")
        if is_published and self._published != wanted.name:
            self._published, self._in_force = wanted.name, ""
            outcome = await self._apply_in_turn(api, wanted, rendered.desired)  # now pruning is allowed
        elif not is_published and self._unpublished():
            self._why_unpublished = f"its objects are written, and it is not published: {publication.message}"
            attempt = ReconcileAttempt(wanted.name, "waiting", time.time(), message=self._why_unpublished)
            await asyncio.to_thread(self._record_attempt, api, attempt)
        return combine_results([result_of_apply(outcome), publication_result(publication)]), True

    def _render(self, api: KubeApi, wanted: Revision) -> Rendered:
        kind = BUDGET if api.serves(BUDGET) else BUDGET_OF_OLD_CLUSTERS
        return render(wanted.loaded, wanted.name, namespace=self._settings.models_namespace, budget_kind=kind)

    async def _apply_in_turn(self, api: KubeApi, wanted: Revision, desired: Desired) -> ApplyOutcome:
        """Apply in turn with `versions`, the second writer of pools whose base has several versions."""
        if self._versions is None:
            return await asyncio.to_thread(self._apply, api, desired)
        async with self._versions.turn:
            applicable = await asyncio.to_thread(self._versions.applicable, api, wanted.loaded, desired)
            return await asyncio.to_thread(self._apply, api, applicable)

    def _apply(self, api: KubeApi, desired: Desired) -> ApplyOutcome:
        began_s = time.monotonic()
        outcome = self._applier(api).reconcile(desired)
        if outcome.written or outcome.pruned:
            what = f"{len(outcome.written)} written, {len(outcome.pruned)} pruned"
            _log.info("%s: %s in %.1f s", outcome.revision, what, time.monotonic() - began_s)
        return outcome

    def _applier(self, api: KubeApi) -> Applier:
        if self._appliers is None or self._appliers[0] is not api:
            names = self._settings
            settings = ApplierSettings(names.models_namespace, names.conflicts, names.gate_timeout_s)
            store = RecordStore(api, names.namespace)
            self._appliers = (
                api,
                Applier(api, store, settings, may_prune=self._may_prune, unpublished=self._unpublished),
            )
        return self._appliers[1]

    def _may_prune(self) -> bool:
        return self._published == self._applying

    def _unpublished(self) -> str:
        """Return why the applied revision is not in force, if known; empty if it is, or was before this term."""
        return "" if self._applying in (self._published, self._in_force) else self._why_unpublished
