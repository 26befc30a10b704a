"""The Kubernetes controller process: builds the parts, leads when elected, stops in order.

Threads: one for the Lease, one for each watch; everything else is on the event loop, with requests in worker threads.
A standby watches too, so that it has the full state when it takes over.

Order of stopping: 1. no new pass, 2. the term ends (the guard permits no more writes), 3. what is under way ends or
is refused, 4. only then the Lease is released. So the next leader begins when no write of ours can still arrive.
"""

import asyncio
import contextlib
import functools
import logging
import os
import secrets
import signal
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack

from kubernetes.client import Configuration

from functions.api.netloc import netloc
from functions.controller.announcing import Announcer
from functions.controller.autoscaling.clients import PoolsClient
from functions.controller.health.watch import FleetHealth
from functions.controller.kubernetes import inventory, memory
from functions.controller.kubernetes.api import KubeApi
from functions.controller.kubernetes.errors import Gone, KubeError, LeadershipLost, Retryable
from functions.controller.kubernetes.inventory import RECORD_NAME
from functions.controller.kubernetes.objects import CONFIG_MAP, INFERENCE_SERVICE, mapping_at
from functions.controller.kubernetes.outcome import PassResult, ReconcileIntervals
from functions.controller.kubernetes.run.branch_reporter import BranchReporter
from functions.controller.kubernetes.run.client import connect
from functions.controller.kubernetes.run.conditions import ScalingStatus
from functions.controller.kubernetes.run.cr_reconciler import CustomResourceReconciler
from functions.controller.kubernetes.run.election import LeaseTiming
from functions.controller.kubernetes.run.elector import Elector, TermGuard
from functions.controller.kubernetes.run.event_notes import Regarding, note_of_finding
from functions.controller.kubernetes.run.event_recorder import EventRecorder
from functions.controller.kubernetes.run.git_reconciler import GitReconciler
from functions.controller.kubernetes.run.health_reconciler import HealthReconciler
from functions.controller.kubernetes.run.lease import LeaseClient, LeaseUnreachable
from functions.controller.kubernetes.run.loop import Loop
from functions.controller.kubernetes.run.metrics import ControllerMetrics
from functions.controller.kubernetes.run.node_watch import NodeInformer
from functions.controller.kubernetes.run.obedience import Obedience
from functions.controller.kubernetes.run.publishing import Publishing
from functions.controller.kubernetes.run.pushes import Pushes
from functions.controller.kubernetes.run.scaling_reconciler import ScalingReconciler
from functions.controller.kubernetes.run.settings import ControllerStartFailed, KubernetesSettings
from functions.controller.kubernetes.run.version_reconciler import VersionReconciler
from functions.controller.kubernetes.run.watch_client import WatchClient
from functions.controller.kubernetes.run.zone_reporter import ZoneReporter
from functions.controller.kubernetes.versions.staged import staged_ids
from functions.controller.rollouts.driver import RolloutDriver
from functions.controller.unobeyed.findings import Unobeyed
from functions.controller.unobeyed.observed import ObservedFleet
from functions.decisions.health.slow_replica import SlowPolicy
from functions.decisions.rollout.report import stages_of
from functions.fleet.branch_report import BranchReport
from functions.fleet.pool_board import PoolReport
from functions.fleet.tasks import Supervised
from functions.http.binding import bind_socket
from functions.telemetry.exposition import MetricsServer
from functions.telemetry.memory import limit_bytes, warn_if_over
from functions.telemetry.otlp_sender import OtlpSender, sender_of

LEASE_NAME = "shoal-controller"
_WORKERS = 8  # a reconcile, a status, artifact look-ups
_STOP_S = 25.0  # for requests under way; each is bounded by its own timeout

_log = logging.getLogger(__name__)


class NoTerm:
    """Guard of an API object that only reads."""

    token = 0

    def check(self) -> None:
        raise LeadershipLost("not leading: nothing is written")

    def remaining_s(self) -> float:
        return 0.0


class KubernetesController:
    """Controller process, owned by one event loop."""

    def __init__(self, settings: KubernetesSettings, configuration: Configuration) -> None:
        self._settings = settings
        self._client = connect(configuration)
        self._name = f"{socket.gethostname()}_{os.getpid()}_{secrets.token_hex(4)}"
        self._metrics = ControllerMetrics()
        self._otlp = _otlp(settings, self._name)
        self._loop = asyncio.get_running_loop()
        self._workers = ThreadPoolExecutor(_WORKERS, thread_name_prefix="worker")
        self._loop.set_default_executor(self._workers)
        self._turn = asyncio.Event()  # set when the term may have changed
        self._rows_moved = asyncio.Event()
        self._tasks = Supervised()
        self._threads: list[threading.Thread] = []
        self._stopped = asyncio.Event()
        self._api: KubeApi | None = None  # API object of the current term
        self._scaled: Mapping[str, ScalingStatus] = {}  # by AutoscalingPolicy
        self._report: PoolReport | None = None  # the registry's last fleet report
        self._events = EventRecorder(self._name, self._metrics.count_event)
        is_git = settings.source == "git"
        self._obedience = Obedience(self._metrics, self._judged_anew, delivers=is_git)
        self._elector = self._make_elector()
        self._publishing = Publishing(
            settings,
            self._elector.guard,
            self._elector.end_outranked_term,
            on_rows=self._rows_changed,
            staged=staged_ids if is_git else None,
        )
        self._nodes_changed = asyncio.Event()
        self._nodes = NodeInformer(WatchClient(self._client.client), self._from_thread(self._nodes_changed.set))
        self._driver = RolloutDriver(
            self._publishing.rows,
            self._publishing.rollout_client,
            self._publishing.registry.fleet,
            patience=settings.rollout_timeouts,
            may_go_on=lambda: not self._pacer.suspended,
            on_share=self._rows_moved.set,
        )
        self._publishing.shares = lambda: self._driver.shares
        self._pacer = Loop(
            self._reconcile,
            settings.namespace,
            self._metrics,
            pace=ReconcileIntervals(resync_s=settings.resync_s, poll_s=settings.publish_retry_s),
            settle_s=settings.settle_s,
            control_poll_s=settings.control_poll_s,
            on_suspended=self._forget_pending,
            on_request=self._fetch_now,
        )
        self._versions = self._make_versions() if is_git else None
        self._reconciler: CustomResourceReconciler | GitReconciler = self._make_reconciler()

    async def run(self) -> None:
        """Serve and run all parts until SIGTERM or SIGINT, then stop them."""
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._stopped.set)
        warn_if_over(memory.most(), limit_bytes())
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._publishing.close)
            if self._otlp is not None:
                self._otlp.start()
                stack.callback(self._otlp.close)
            server = self._serve()
            stack.push_async_callback(asyncio.to_thread, server.close)
            if isinstance(self._reconciler, GitReconciler) and self._settings.webhook_port is not None:
                webhook = await self._pushes(self._reconciler).listen(self._settings.webhook_port)
                stack.callback(webhook.close)
            self._start()
            await self._stopped.wait()
            await self._stop()

    # -- parts --------------------------------------------------------------------------------------------------------

    def _make_elector(self) -> Elector:
        settings = self._settings
        timing = LeaseTiming(settings.lease_s, settings.renew_deadline_s, settings.lease_retry_s)
        client = LeaseClient(self._client.client, settings.namespace, LEASE_NAME, timing)
        return Elector(client, self._name, self._from_thread(self._turn.set), lowest_token=self._recorded_token)

    def _make_reconciler(self) -> CustomResourceReconciler | GitReconciler:
        if self._settings.source == "git":
            return GitReconciler(
                self._settings, self._publishing, self._pacer.wake, self._events.record, versions=self._versions
            )
        client = WatchClient(self._client.client)
        wake = self._from_thread(self._pacer.wake)
        return CustomResourceReconciler(
            self._settings,
            client,
            self._publishing,
            wake,
            scaling=lambda: self._scaled,
            judgement=lambda: self._obedience.judgement,
            on_notes=self._events.record,
        )

    def _make_versions(self) -> VersionReconciler:
        publishing = self._publishing
        return VersionReconciler(
            self._settings,
            publishing.rows,
            wanted=lambda: publishing.published,
            published=lambda: publishing.in_force,
            driver=lambda: self._driver,
            is_suspended=lambda: self._pacer.suspended,
            wake=self._pacer.wake,
        )

    def _pushes(self, reconciler: GitReconciler) -> Pushes:
        return Pushes(
            self._settings,
            reconciler,
            self._client,
            leads=lambda: self._elector.guard() is not None,
            metrics=self._metrics,
            tasks=self._tasks,
        )

    def _recorded_token(self) -> int:
        """Return the record's token, or 0 if unreadable; a new Lease begins above it. Raises LeaseUnreachable."""
        try:
            found = KubeApi(self._client, NoTerm()).get(CONFIG_MAP, self._settings.namespace, RECORD_NAME)
            return inventory.decode(mapping_at(found, "data")).token if found is not None else 0
        except (Retryable, Gone) as error:
            raise LeaseUnreachable(f"the record's token is not known: {error}") from error
        except KubeError as error:  # unreadable until repaired; the reconcile reports that
            _log.warning("the record cannot be read: %s", error)
            return 0

    def _from_thread(self, act: Callable[[], None]) -> Callable[[], None]:
        def call_on_loop() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the process ends
                self._loop.call_soon_threadsafe(act)

        return call_on_loop

    def _start(self) -> None:
        self._thread("lease", self._elector.run)
        self._thread("watch nodes", self._nodes.run)
        if isinstance(self._reconciler, CustomResourceReconciler):
            for informer in self._reconciler.informers:
                self._thread(f"watch {informer.watched.plural}", informer.run)
        else:
            self._tasks.forever("branch", self._reconciler.follow_branch)
        self._tasks.forever("registry rows", self._publishing.rows.run)
        self._tasks.forever("lead", self._lead, expected=(LeadershipLost,))

    def _thread(self, name: str, run: Callable[[], None]) -> None:
        thread = threading.Thread(target=run, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    # -- leading ------------------------------------------------------------------------------------------------------

    async def _lead(self) -> None:
        """Wait for a term and run its tasks; raises LeadershipLost at its end."""
        guard = await self._next_term()
        api = self._api = KubeApi(self._client, guard)
        self._metrics.set_leader(guard.token, time.time())
        try:
            async with asyncio.TaskGroup() as parts:
                parts.create_task(self._pacer.lead(guard, api))
                parts.create_task(self._driver.run())
                parts.create_task(self._follow_rows())
                parts.create_task(self._scaling().run(api))
                if self._versions is not None:
                    parts.create_task(self._versions.run(api))
                parts.create_task(self._zones().run(api))
                parts.create_task(self._health().run(api))
                parts.create_task(self._events.run(api))
                parts.create_task(self._branch().run())
                if isinstance(self._reconciler, CustomResourceReconciler):
                    parts.create_task(self._reconciler.writer.run(api))
        except* LeadershipLost as lost:
            raise LeadershipLost(f"term {guard.token} is over") from lost
        finally:
            self._metrics.set_leader(None)
            self._obedience.reset()
            self._events.drop_pending()

    def _zones(self) -> ZoneReporter:
        return ZoneReporter(self._settings.namespace, self._publishing.registry, self._settings.zones_interval_s)

    def _health(self) -> HealthReconciler:
        policy = SlowPolicy(self._settings.slow_after_s, self._settings.slow_backoff_s)
        return HealthReconciler(
            self._settings.models_namespace,
            PoolsClient(self._publishing.registry),
            FleetHealth(policy),
            report=lambda: self._report,
            nodes=self._nodes.nodes,
            changed=self._nodes_changed,
            is_suspended=lambda: self._pacer.suspended,
            on_notes=self._events.record,
        )

    def _branch(self) -> BranchReporter:
        source = (self._publishing.registry, self._reconciler.branch_report, lambda: self._pacer.suspended)
        if self._otlp is None:
            return BranchReporter(*source)
        announcer, rows = Announcer(self._otlp), self._publishing.rows  # one per term

        def announce(report: BranchReport) -> None:
            announcer.send_events(report, rows.book, time.time())

        return BranchReporter(*source, announce)

    def _scaling(self) -> ScalingReconciler:
        return ScalingReconciler(
            self._settings,
            self._publishing.registry,
            self._metrics,
            wanted=lambda: self._publishing.published,
            is_suspended=lambda: self._pacer.suspended,
            on_status=self._scaling_changed,
            on_report=self._fleet_reported,
            on_notes=self._events.record,
            totals=self._versions,
        )

    def _scaling_changed(self, statuses: Mapping[str, ScalingStatus]) -> None:
        self._scaled = statuses
        self._judge()
        self._wake_source()

    def _fleet_reported(self, report: PoolReport | None) -> None:
        self._report = report
        self._judge()

    def _judge(self) -> None:
        """Update the findings of which policies of the published revision, if any, are not obeyed."""
        published = self._publishing.published
        if published is not None:
            contested = {name: each.contested for name, each in self._scaled.items() if each.contested}
            self._obedience.update(*published, ObservedFleet(self._report, contested), time.monotonic())

    def _judged_anew(self, new: Sequence[Unobeyed]) -> None:
        """Report new findings: wake the source, which writes statuses; record Events for objects without a status."""
        self._wake_source()
        for finding in new:
            regarding = self._without_status(finding)
            if regarding is not None:
                self._events.record([note_of_finding(regarding, finding)])

    def _without_status(self, finding: Unobeyed) -> Regarding | None:
        """Return the object for an Event (git: the record; else the InferenceService), or None if a status has it."""
        if isinstance(self._reconciler, GitReconciler):
            return self._reconciler.record
        stored = self._reconciler.find_object(finding.key) if finding.kind == INFERENCE_SERVICE.kind else None
        return Regarding.from_stored(INFERENCE_SERVICE, stored) if stored is not None else None

    def _wake_source(self) -> None:
        if isinstance(self._reconciler, CustomResourceReconciler):
            self._pacer.wake()

    async def _next_term(self) -> TermGuard:
        while (guard := self._elector.guard()) is None:
            self._turn.clear()
            await self._turn.wait()
        return guard

    async def _reconcile(self, guard: TermGuard, api: KubeApi) -> PassResult:
        result = await self._reconciler.reconcile(guard, api)
        if result.kind == "done":
            self._metrics.set_last_applied(time.time())
        return result

    async def _follow_rows(self) -> None:
        """Publish channels at their rollouts' stages until the term ends, even if a pass is suspended or refused."""
        self._rows_moved.set()
        while True:
            await self._rows_moved.wait()
            self._rows_moved.clear()
            outcome = await self._publishing.follow_rows()
            if outcome.kind == "published":
                _log.info("%s", outcome.message)
            if outcome.kind == "unavailable" or outcome.held:
                await asyncio.sleep(self._settings.publish_retry_s)
                self._rows_moved.set()

    def _rows_changed(self) -> None:
        self._rows_moved.set()
        self._pacer.wake()

    async def _fetch_now(self) -> None:
        """With the git source, fetch before a requested pass: it is about the remote's current tip."""
        if isinstance(self._reconciler, GitReconciler):
            await self._reconciler.fetch_tip()

    def _forget_pending(self) -> None:
        """Drop pending status writes when suspended; the pass after the resumption submits them again."""
        if isinstance(self._reconciler, CustomResourceReconciler):
            self._reconciler.writer.submit(())

    # -- stopping -----------------------------------------------------------------------------------------------------

    async def _stop(self) -> None:
        await self._tasks.close()
        self._elector.stop()
        self._nodes.stop()
        if isinstance(self._reconciler, CustomResourceReconciler):
            for informer in self._reconciler.informers:
                informer.stop()
        last = ThreadPoolExecutor(1, thread_name_prefix="stop")
        self._loop.set_default_executor(last)
        under_way = functools.partial(self._workers.shutdown, cancel_futures=True)
        try:
            async with asyncio.timeout(_STOP_S):
                await self._loop.run_in_executor(last, under_way)
        except TimeoutError:
            _log.warning("requests are still under way; the Lease is not released and expires by itself")
            return
        await self._loop.run_in_executor(last, self._elector.release_lease)

    # -- health -------------------------------------------------------------------------------------------------------

    def _serve(self) -> MetricsServer:
        try:
            listener = bind_socket(self._settings.host, self._settings.port)
            listener.listen()
        except OSError as error:
            where = netloc(self._settings.host, self._settings.port)
            message = f"cannot listen on {where}: {error.strerror}; set SHOAL_CONTROLLER_PORT"
            raise ControllerStartFailed(message) from error
        _log.info("health and metrics on port %d", listener.getsockname()[1])
        probes = {"/healthz": self._not_alive_reason, "/readyz": self._reconciler.not_ready_reason}
        server = MetricsServer(listener, self._metrics.registry, self._refresh, self._loop, probes)
        server.start()
        return server

    def _not_alive_reason(self) -> str:
        """Return which threads have ended, or an empty text. The event loop runs, or this would not be called."""
        dead = [thread.name for thread in self._threads if not thread.is_alive()]
        return f"ended: {', '.join(dead)}" if dead else ""

    def _refresh(self) -> None:
        api, reconciler = self._api, self._reconciler
        if api is not None:
            counts = api.counts
            sent = {"reads": counts.reads, "dry_runs": counts.dry_runs, "writes": counts.writes}
            self._metrics.set_request_counts(sent)
        if isinstance(reconciler, CustomResourceReconciler):
            objects = {each.watched.kind: each.store.count for each in reconciler.informers}
            refused = len(reconciler.looked.refusals) if reconciler.looked is not None else 0
            self._metrics.set_objects(objects, refused, reconciler.writer.pending, suspended=self._pacer.suspended)
        else:
            self._metrics.set_objects({}, reconciler.refused, 0, suspended=self._pacer.suspended)
        self._metrics.set_epoch(self._publishing.last_epoch)
        self._metrics.set_rollout_stages(stages_of(self._publishing.rows.book.active))


def _otlp(settings: KubernetesSettings, name: str) -> OtlpSender | None:
    try:
        return sender_of(settings, "shoal-controller", name)
    except OSError as error:  # ssl.SSLError is one
        message = f"SHOAL_CONTROLLER_OTLP_HEADERS_FILE, SHOAL_CONTROLLER_OTLP_CA_FILE: {error}"
        raise ControllerStartFailed(message) from error
