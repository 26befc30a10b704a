"""The controller process: combines the parts, adopts running processes, then reconciles until it is stopped.

Order of a start: 1. take the lock (one controller per state directory), 2. read the desired revision, 3. adopt
processes of an earlier controller that fit the desired or the last applied revision, and end the others, 4. check
that the ports are free, 5. supervise, follow the branch, publish, and answer the control channel.

SIGTERM and SIGKILL end only the controller; the fleet continues. `stop` on the control channel ends the fleet.
"""

import asyncio
import contextlib
import logging
import os
import signal
import time
from collections import Counter
from contextlib import AsyncExitStack

from functions.api.loader import Loaded
from functions.api.problems import Problem
from functions.api.snapshot import Snapshot
from functions.artifacts.errors import ArtifactError
from functions.controller.announcing import Announcer
from functions.controller.autoscaling.kept import read_sizes
from functions.controller.autoscaling.local import LocalScaling
from functions.controller.branch_word import LOOK_EVERY_S, BranchReportSender, report_of
from functions.controller.gitops.following import BranchFollower
from functions.controller.gitops.git import GitFailed
from functions.controller.gitops.review import Reviewer, changes_in_words
from functions.controller.gitops.source import GitSource
from functions.controller.health.local import LocalHealth
from functions.controller.health.watch import FleetHealth
from functions.controller.local.adoption import AdoptionPlan, end_now, fleet_processes, plan_adoption, sessions_of
from functions.controller.local.base_versions import BaseVersions
from functions.controller.local.control import serve_control
from functions.controller.local.files import lock_held
from functions.controller.local.instances import Instance, ProcessLedger, read_ledger, slots_in
from functions.controller.local.layout import StateLayout
from functions.controller.local.operations import Operations
from functions.controller.local.pools import Pool, PoolUnusable, pools_of, read_target, unusable_problems
from functions.controller.local.port_check import check_ports
from functions.controller.local.ports import MAX_SLOTS, plan_ports
from functions.controller.local.reconciler import Reconciler
from functions.controller.local.settings import ControllerSettings, LocalSettings
from functions.controller.local.spec import ProcessSpec
from functions.controller.local.supervisor import Supervisor
from functions.controller.local.surge import has_memory
from functions.controller.local.surge_room import find_machine
from functions.controller.orders import Orders
from functions.controller.rollouts.book import Book
from functions.controller.rollouts.driver import RolloutDriver
from functions.controller.snapshot.publication import LocalClients, Publication
from functions.controller.snapshot.publish import PublishOutcome
from functions.decisions.health.slow_replica import SlowPolicy
from functions.fleet.tasks import Supervised
from functions.telemetry.otlp_sender import sender_of

S3_WAIT_S = 60.0
PUBLISHED_WAIT_S = 20.0  # longest wait for a removed pool; then it is drained although gateways still know it

_log = logging.getLogger(__name__)


class NothingToRun(Exception):
    """The branch has nothing usable and never had; running processes are left alone. Repair it, then start again."""


class Controller:
    def __init__(self, local: LocalSettings, settings: ControllerSettings) -> None:
        self._local = local
        self._settings = settings
        self._machine = find_machine(os.environ, local.max_engines)
        self._layout = StateLayout.at(local.state_dir, local.region)
        self._git = GitSource(self._layout.gitops_dir)
        allocations = read_sizes(self._layout.scaling_file)
        self._reconciler = Reconciler(
            self._layout,
            local,
            read_target(self._layout.target_file),
            until_published=self._until_published,
            on_done=self._on_converged,
            is_paused=lambda: self._following.suspended,
            counts={name: allocation.count for name, allocation in allocations.items()},
            no_room=self._no_room,
        )
        self._following = BranchFollower(self._git, self._layout.revisions_file, self._check)
        self._supervisor = Supervisor(self._layout, environ=os.environ, controller_pid=os.getpid())
        self._operations = Operations(self._supervisor)
        self._rows_changed = asyncio.Event()
        self._source = LocalClients(self._reconciler.context, self._layout.registry_rows_file, self._rows_changed.set)
        self._tasks = Supervised()
        self._health = LocalHealth(
            self._layout,
            FleetHealth(SlowPolicy(settings.slow_after_s, settings.slow_backoff_s)),
            operations=self._operations,
            source=self._source,
            tasks=self._tasks,
            is_suspended=lambda: self._following.suspended,
        )
        self._scaling = LocalScaling(
            self._layout,
            local,
            reconciler=self._reconciler,
            supervisor=self._supervisor,
            source=self._source,
            is_suspended=lambda: self._following.suspended,
            allocations=allocations,
            on_report=self._health.set_report,
        )
        self._driver = RolloutDriver(
            self._source.rows,
            self._source.rollout_client,
            self._source.replicas,
            patience=settings.patience,
            may_go_on=lambda: not self._following.suspended,
            on_share=self._rows_changed.set,
        )
        self._source.shares = lambda: self._driver.shares
        adapters_dir = local.project_dir.resolve() / "registry" / "adapters"
        self._published_book: Book | None = None
        self._publication = Publication(self._publish, self._reconciler.context, adapters_dir)
        self._base_versions = BaseVersions(
            self._layout.base_versions_file,
            reconciler=self._reconciler,
            rows=self._source.rows,
            driver=self._driver,
            published=self._published_for_rows,
            is_suspended=lambda: self._following.suspended,
            may_surge=self._may_surge,
        )
        self._otlp = sender_of(settings, "shoal-controller", f"local-{os.getpid()}")
        self._stopped = asyncio.Event()
        self._orders = Orders(
            layout=self._layout,
            following=self._following,
            reconciler=self._reconciler,
            supervisor=self._supervisor,
            operations=self._operations,
            publication=self._publication,
            source=self._source,
            driver=self._driver,
            scaling=self._scaling,
            health=self._health,
            reviewer=Reviewer(self._git, self._check, changes_in_words),
            tasks=self._tasks,
            stopped=self._stopped,
        )

    async def run(self) -> None:
        """Run until stopped or signalled. Before anything starts, LockTaken, PortsTaken, NothingToRun or
        BinaryMissing may be raised."""
        self._layout.make_directories()
        async with AsyncExitStack() as stack:
            stack.enter_context(lock_held(self._layout.controller_lock))
            await self._following.start()
            ledger = read_ledger(self._layout.ledger_file)
            candidates = await self._candidates(slots_in(ledger))
            adoption = await asyncio.to_thread(self._end_unwanted, candidates, ledger)
            await asyncio.to_thread(self._source.rows.load)
            stack.push_async_callback(self._supervisor.close)
            stack.push_async_callback(self._source.close)
            stack.push_async_callback(self._orders.close)
            stack.push_async_callback(self._tasks.close)
            self._supervisor.adopt(adoption.keep)
            self._scaling.restore_sizes()
            if self._otlp is not None:
                self._otlp.start()
                stack.push_async_callback(asyncio.to_thread, self._otlp.close)
            server = await serve_control(self._layout.control_socket, self._orders.handle)
            stack.callback(self._layout.control_socket.unlink, missing_ok=True)
            stack.callback(server.close)
            self._start_tasks()
            for number in (signal.SIGTERM, signal.SIGINT):
                asyncio.get_running_loop().add_signal_handler(number, self._stopped.set)
            await self._stopped.wait()

    async def _candidates(self, slots: dict[str, int]) -> list[dict[str, ProcessSpec]]:
        """Return the specs that running processes may have: those desired now first, then those applied last. Make the
        desired revision that of the processes and the autoscaler. Raise NothingToRun if there is none."""
        desired = self._following.desired
        if desired is None:
            branch = self._following.branch
            why = branch.trouble or "; ".join(str(problem) for problem in branch.refused[:3])
            raise NothingToRun(f"{self._layout.gitops_dir} has nothing that can run: {why}")
        self._reconciler.set_desired(desired.revision, pools_of(desired.loaded))
        self._scaling.set_policies(desired.revision, desired.loaded)
        candidates = self._reconciler.candidates(slots)
        applied = self._following.record.last_applied
        if applied and applied != desired.revision:
            try:
                former = await asyncio.to_thread(self._git.read_commit, applied.rpartition("@")[2])
                if former.loaded is not None:
                    candidates += self._reconciler.candidates(slots, pools_of(former.loaded))
            except (GitFailed, PoolUnusable) as error:
                _log.warning("the last applied revision cannot be read, so its processes end now: %s", error)
        return candidates

    def _end_unwanted(self, candidates: list[dict[str, ProcessSpec]], ledger: ProcessLedger) -> AdoptionPlan:
        found = fleet_processes(self._layout, ledger)
        plan = plan_adoption(found, sessions_of(found), ledger, candidates)
        if plan.end:
            _log.info("ending %d left-over processes: %s", len(plan.end), ", ".join(sorted({p.name for p in plan.end})))
            end_now(plan.end)
        ports = plan_ports(self._local)
        slots = [spec.slot for spec in candidates[0].values() if spec.slot is not None]
        check_ports(ports.uses(slots), ours={process.pid for process in found})
        return plan

    def _start_tasks(self) -> None:
        tasks, settings, following = self._tasks, self._settings, self._following
        tasks.forever("supervisor", self._supervisor.run)
        tasks.once("unfinished takeovers", self._operations.finish_takeovers())
        tasks.forever("branch", lambda: following.watch(settings.config_poll_s), expected=(GitFailed,))
        desired, changed = following.subscribe(), following.subscribe()
        tasks.forever("desired", lambda: self._follow_desired(desired))
        tasks.forever("converge", lambda: self._reconciler.run(self._supervisor, self._operations))
        tasks.once("seed", self._publication.seed(self._s3_is_ready, changed, settings.publish_retry_s))
        tasks.forever("publish", lambda: self._publication.run(changed, settings.publish_retry_s, settings.resync_s))
        tasks.forever("registry rows", self._source.rows.run)
        tasks.forever("rows to publish", lambda: self._follow_rows(changed))
        tasks.forever("rollouts", self._driver.run)
        tasks.forever("base versions", self._base_versions.run)
        tasks.forever("scaling", self._scaling.run)
        tasks.forever("health", self._health.run)
        tasks.forever("branch's word", self._report_branch)

    async def _follow_desired(self, changed: asyncio.Event) -> None:
        """Pass each desired revision to the processes and the autoscaler, except while suspended, until cancelled."""
        while True:
            await changed.wait()
            changed.clear()
            desired = self._following.desired
            if desired is not None and not self._following.suspended:
                self._reconciler.set_desired(desired.revision, pools_of(desired.loaded))
                self._scaling.set_policies(desired.revision, desired.loaded)

    async def _report_branch(self) -> None:
        """Report to the console what is followed, running and refused, and send events about changes, every
        LOOK_EVERY_S until cancelled."""
        word = BranchReportSender(self._source.registry)
        announcer = Announcer(self._otlp) if self._otlp is not None else None
        while True:
            report = report_of(await self._orders.handle({"do": "status"}))
            if announcer is not None:
                announcer.send_events(report, self._source.rows.book, time.time())
            await word.send_report(report)
            await asyncio.sleep(LOOK_EVERY_S)

    async def _follow_rows(self, changed: asyncio.Event) -> None:
        """Publish when the registry's rows change, until cancelled: first the channels only, so that a rollback waits
        for no other publication."""
        while True:
            await self._rows_changed.wait()
            self._rows_changed.clear()
            with contextlib.suppress(ArtifactError, OSError):  # if there is no publisher, `_publish` reports why
                await (await self._source.publisher()).follow_rows()
            changed.set()

    async def _publish(self) -> PublishOutcome:
        """Publish the desired revision. If suspended, only the registry's decisions (such as a rollback) are
        published."""
        desired, following, last = self._following.desired, self._following, self._publication.last
        book = self._source.rows.book
        is_published = desired is not None and last.revision == desired.revision and self._published_book is book
        if desired is None or (following.suspended and is_published):
            return last
        try:
            publisher = await self._source.publisher()
        except (ArtifactError, OSError) as error:
            return PublishOutcome("unavailable", f"the publisher cannot be created: {error}")
        outcome = await publisher.publish(desired.loaded, desired.revision, empty_is_meant=desired.empty_is_meant)
        if outcome.kind in ("published", "unchanged"):
            self._published_book = book
        if outcome.kind in ("published", "unchanged") and not outcome.held:
            following.mark_published(desired.revision)
        elif outcome.kind in ("refused", "invalid"):
            following.mark_failed(desired.revision, outcome.message)
        return outcome

    # -- callbacks of the parts
    # --------------------------------------------------------------------------------------------

    def _check(self, loaded: Loaded) -> tuple[Problem, ...]:
        return unusable_problems(loaded, self._reconciler.wanted.target)

    def _published_for_rows(self) -> Snapshot | None:
        """Return the registry's snapshot; None while its rows are newer, for example after a rollout has just ended."""
        return self._publication.snapshot if self._published_book is self._source.rows.book else None

    def _may_surge(self, pool: Pool) -> bool:
        """Return True if settings, YAML, ports, memory and accelerators allow one more replica of the pool."""
        wanted = self._reconciler.wanted
        declared = any(each.name == pool.name and each.may_surge for each in self._reconciler.declared)
        has_port = (
            sum(len(each.folders) or self._reconciler.replicas_of(each.name) for each in wanted.pools) < MAX_SLOTS
        )
        if not (self._local.surge and declared and has_port) or self._no_room(pool):
            return False
        return has_memory(i.state.pid for i in self._engines() if i.spec.pool == pool.name and i.state.pid)

    def _no_room(self, pool: Pool) -> str:
        asleep = self._scaling.sleeping_replicas()
        awake = Counter(
            i.spec.pool
            for i in self._engines()
            if i.spec.pool and i.state.phase != "stopped" and i.spec.replica_id not in asleep
        )
        wanted = self._reconciler.wanted
        return self._machine.no_room(pool, awake, wanted.pools, wanted.target.engine)

    def _engines(self) -> list[Instance]:
        return [i for i in self._supervisor.instances.values() if i.spec.role == "engine"]

    async def _until_published(self, revision: str) -> None:
        def published() -> bool:
            desired = self._following.desired
            return desired is None or desired.revision != revision or desired.published

        await self._following.wait_until(published, PUBLISHED_WAIT_S)

    def _on_converged(self, revision: str, stalled: str) -> None:
        if stalled:
            self._following.mark_failed(revision, stalled)
        else:
            self._following.mark_converged(revision)

    async def _s3_is_ready(self) -> bool:
        def ready() -> bool:
            instance = self._supervisor.current("s3")
            return instance is not None and instance.state.phase == "ready"

        return await self._supervisor.wait_until(ready, S3_WAIT_S)
