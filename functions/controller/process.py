"""The controller process: puts the parts together, takes over what runs, then reconciles until told to stop.

Start, in order: 1. the lock (one controller per state directory), 2. what is wanted, 3. what an earlier controller
left: keep what fits, end the rest, 4. are our ports free, 5. supervise, publish, answer the control channel.

Law: SIGTERM and SIGKILL end the controller only; the fleet goes on. `stop` on the control channel ends the fleet.
"""

import asyncio
import logging
import os
import signal
from contextlib import AsyncExitStack
from typing import Any

import msgspec

from functions.controller.local import ledger as ledgers
from functions.controller.local import target as targets
from functions.controller.local.adoption import AdoptionPlan, plan_adoption
from functions.controller.local.control import OrderRefused, serve_control
from functions.controller.local.layout import StateLayout
from functions.controller.local.locks import held
from functions.controller.local.operations import NoSuchProcess, NotReadyAgain, Operations
from functions.controller.local.orphans import end_now, left_over, sessions_of
from functions.controller.local.port_check import check_ports
from functions.controller.local.ports import plan_ports
from functions.controller.local.reconciler import Reconciler
from functions.controller.local.settings import LocalSettings
from functions.controller.local.spec import ProcessSpec
from functions.controller.local.supervisor import Supervisor
from functions.controller.local.target import Target
from functions.controller.publication import Publication
from functions.controller.settings import ControllerSettings
from functions.controller.snapshot_source import SnapshotSource
from functions.controller.status import describe
from functions.fleet.tasks import Supervised

S3_WAIT_S = 60.0

_log = logging.getLogger(__name__)


class Controller:
    def __init__(self, local: LocalSettings, settings: ControllerSettings) -> None:
        self._local = local
        self._settings = settings
        self._layout = StateLayout.at(local.state_dir)
        self._reconciler = Reconciler(self._layout, local, self._layout.config_dir)
        self._supervisor = Supervisor(self._layout, environ=os.environ, controller_pid=os.getpid())
        self._operations = Operations(self._supervisor)
        self._source = SnapshotSource(self._reconciler.context)
        adapters_dir = local.project_dir.resolve() / "registry" / "adapters"
        self._publication = Publication(self._source.publish, self._reconciler.context, adapters_dir)
        self._tasks = Supervised()
        self._operation = ""  # what is being done, or how the last one ended
        self._busy = False
        self._stopped = asyncio.Event()

    async def run(self) -> None:
        """Until stopped or signalled; LockTaken, PortsTaken and BinaryMissing before anything was started."""
        self._layout.make()
        async with AsyncExitStack() as stack:
            stack.enter_context(held(self._layout.controller_lock))
            self._reconciler.look()
            ledger = ledgers.read(self._layout.ledger_file)
            slots = {e.replica_id: e.slot for e in ledger.processes if e.replica_id is not None and e.slot is not None}
            wanted = self._reconciler.specs(slots)
            adoption = await asyncio.to_thread(self._clear_the_way, wanted, ledger)
            stack.push_async_callback(self._supervisor.close)
            stack.push_async_callback(self._source.close)
            stack.push_async_callback(self._tasks.close)
            self._supervisor.adopt(adoption.keep)
            server = await serve_control(self._layout.control_socket, self._handle)
            stack.callback(self._layout.control_socket.unlink, missing_ok=True)
            stack.callback(server.close)
            self._start_tasks()
            for number in (signal.SIGTERM, signal.SIGINT):
                asyncio.get_running_loop().add_signal_handler(number, self._stopped.set)
            await self._stopped.wait()

    def _clear_the_way(self, wanted: dict[str, ProcessSpec], ledger: ledgers.Ledger) -> AdoptionPlan:
        found = left_over(self._layout, ledger)
        plan = plan_adoption(found, sessions_of(found), ledger, wanted)
        if plan.end:
            _log.info("ending %d left-over processes: %s", len(plan.end), ", ".join(sorted({p.name for p in plan.end})))
            end_now(plan.end)
        ports = plan_ports(self._local)
        slots = [spec.slot for spec in wanted.values() if spec.slot is not None]
        check_ports(ports.uses(slots), ours={process.pid for process in found})
        return plan

    def _start_tasks(self) -> None:
        tasks, settings = self._tasks, self._settings
        tasks.forever("supervisor", self._supervisor.run)
        tasks.once("unfinished takeovers", self._operations.finish_takeovers())
        self._reconciler.wake()
        tasks.forever("watch", lambda: self._reconciler.watch(settings.config_poll_s))
        tasks.forever("converge", lambda: self._reconciler.converge(self._supervisor, self._operations))
        changed = self._reconciler.changed
        tasks.once("seed", self._publication.seed(self._s3_is_ready, changed, settings.publish_retry_s))
        tasks.forever("publish", lambda: self._publication.run(changed, settings.publish_retry_s, settings.resync_s))

    async def _s3_is_ready(self) -> bool:
        def ready() -> bool:
            instance = self._supervisor.current("s3")
            return instance is not None and instance.state.phase == "ready"

        return await self._supervisor.until(ready, S3_WAIT_S)

    # -- orders -------------------------------------------------------------------------------------------------------

    async def _handle(self, order: dict[str, Any]) -> Any:
        match order:
            case {"do": "status"}:
                return self._status()
            case {"do": "stop"}:
                self._tasks.once("stop", self._stop())
                return "stopping"
            case {"do": "restart", "name": str(name)}:
                return self._begin_restart(name)
            case {"do": "configure"}:
                return self._configure(order)
        raise OrderRefused("an order is status, stop, restart with a name, or configure with engine and replicas")

    def _status(self) -> dict[str, Any]:
        return describe(
            pid=os.getpid(),
            layout=self._layout,
            supervisor=self._supervisor,
            wanted=self._reconciler.wanted,
            publication=self._publication,
            operation=self._operation,
        )

    def _begin_restart(self, name: str) -> str:
        if self._busy:
            raise OrderRefused(f"busy: {self._operation}; try again when that is done")
        try:
            names = self._operations.named(name)
        except NoSuchProcess as error:
            raise OrderRefused(str(error)) from error
        self._busy = True
        self._operation = f"restarting {', '.join(names)}"
        self._tasks.once(self._operation, self._restart(name))
        return self._operation

    async def _restart(self, name: str) -> None:
        try:
            self._operation = await self._operations.restart(name)
        except (NoSuchProcess, NotReadyAgain) as error:
            self._operation = f"failed: {error}"
        finally:
            self._busy = False

    def _configure(self, order: dict[str, Any]) -> dict[str, Any]:
        try:
            asked = {"engine": order.get("engine"), "replicas": order.get("replicas")}
            target = msgspec.convert(asked, Target)
        except msgspec.ValidationError as error:
            raise OrderRefused(f"not a target: {error}") from error
        targets.write(self._layout.target_file, target)
        return asked

    async def _stop(self) -> None:
        self._operation, self._busy = "stopping everything", True
        await self._operations.stop_all()
        self._supervisor.record()
        self._stopped.set()
