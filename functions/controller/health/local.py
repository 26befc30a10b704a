"""Health of a local fleet: slow replicas are drained and restarted; a replica with a failed accelerator stays out.

Every few seconds the autoscaler's latest report is judged. A restart is the same as an operator's
(`local.operations`): the agent drains, the engine ends, both start again. If the controller is suspended, no replica
is restarted.

A replica whose accelerator has failed takes itself out. The supervisor does not start its engine while the file with
the error exists (`functions.replica.accelerator_fault`); `clear_fault` deletes that file.
"""

import asyncio
import logging
from collections.abc import Callable

from functions.controller.health.notifier import VerdictNotifier
from functions.controller.health.watch import FleetHealth, SlowReplica
from functions.controller.local.layout import StateLayout
from functions.controller.local.operations import NoSuchProcess, NotReadyAgain, Operations
from functions.controller.snapshot.publication import LocalClients
from functions.fleet.pool_board import PoolReport
from functions.fleet.tasks import Supervised
from functions.fleet.verdicts import Verdicts

LOOK_EVERY_S = 2.0

_log = logging.getLogger(__name__)


class NoFault(Exception):
    """There is no fault to clear; the message lists the replicas that have one."""


class LocalHealth:
    """Owned by one event loop."""

    def __init__(
        self,
        layout: StateLayout,
        health: FleetHealth,
        *,
        operations: Operations,
        source: LocalClients,
        tasks: Supervised,
        is_suspended: Callable[[], bool],
    ) -> None:
        self._layout = layout
        self._health = health
        self._operations = operations
        self._source = source
        self._tasks = tasks
        self._is_suspended = is_suspended
        self._notifier = VerdictNotifier()
        self._report: PoolReport | None = None

    def set_report(self, report: PoolReport | None) -> None:
        """Store the registry's latest report, which the next step judges."""
        self._report = report

    async def run(self) -> None:
        """Judge the latest report every LOOK_EVERY_S until cancelled."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            await self.step()

    async def step(self) -> None:
        """Judge the latest report, start restarts of slow replicas unless the controller is suspended, and send the
        verdicts to the registry."""
        judged = self._health.step(self._report)
        for replica in judged.restart if not self._is_suspended() else ():
            self._health.mark_restarting(replica)
            self._tasks.once(f"restart of {replica.replica_id}", self._restart(replica))
        verdicts = Verdicts(replicas=judged.troubles, slow_restarts=dict(self._health.slow_restarts))
        try:
            client = await self._source.pools_client()
        except OSError as error:
            _log.debug("verdicts are not sent yet: the registry's credentials cannot be read: %s", error)
            return
        await self._notifier.notify(client, verdicts)

    def clear_fault(self, replica_id: str) -> str:
        """Clear the error of an accelerator that an operator has checked; return a message. Raises NoFault."""
        faulty = sorted(each.parent.name for each in self._layout.accelerator_fault_files())
        if replica_id not in faulty:
            raise NoFault(f"{replica_id} has no accelerator fault; replicas with one: {', '.join(faulty) or 'none'}")
        self._layout.accelerator_fault_file(replica_id).unlink(missing_ok=True)
        _log.warning("%s: its accelerator fault was cleared", replica_id)
        return f"{replica_id} accepts requests again once its engine is ready"

    async def _restart(self, replica: SlowReplica) -> None:
        try:
            await self._operations.restart(replica.replica_id)
        except (NoSuchProcess, NotReadyAgain) as error:
            _log.error("%s was restarted for being slow and is not ready again: %s", replica.replica_id, error)
