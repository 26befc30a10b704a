"""One pass on one machine: writes for agents and processes, priorities between pools, and waiting."""

import asyncio
import itertools
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import httpx
from msgspec.structs import replace

from functions.controller.autoscaling.allocation import Allocation
from functions.controller.autoscaling.clients import PoolsClient
from functions.controller.autoscaling.kept import Forecasts
from functions.controller.autoscaling.local import LocalScaling
from functions.controller.autoscaling.scaler import PoolSize
from functions.controller.local.layout import StateLayout
from functions.controller.local.pools import Pool, Target
from functions.controller.local.ports import MAX_SLOTS
from functions.controller.local.reconciler import Reconciler
from functions.controller.local.settings import LocalSettings
from functions.controller.local.supervisor import Supervisor
from functions.controller.snapshot.publication import LocalClients
from functions.controller.snapshot.registry_client import RegistryClient
from functions.decisions.autoscaling.forecast import Demand
from functions.decisions.autoscaling.forecast_memory import Memory
from functions.fleet.pool_board import PoolReport
from tests.controller.configs import load, pool
from tests.controller.scaling.builders import POOL, replica, report

POLICY = f"""\
apiVersion: shoal.dev/v1alpha1
kind: AutoscalingPolicy
metadata: {{name: {POOL}}}
spec: {{pool: {POOL}, replicas: {{min: 1, max: 20}}, warm: 1, scaleUp: ["queue_seconds > 9: +1"]}}
"""


class Hearing(PoolsClient):
    """A registry that always answers with one report."""

    def __init__(self, heard: PoolReport) -> None:
        super().__init__(RegistryClient(httpx.AsyncClient(), "https://127.0.0.1:1", ""))
        self._heard = heard

    async def report(self) -> PoolReport:
        return self._heard


class Source(LocalClients):
    heard: PoolReport | None = None
    asked = 0  # one request at the beginning of each pass

    async def pools_client(self) -> PoolsClient:
        self.asked += 1
        return Hearing(self.heard) if self.heard is not None else await super().pools_client()


class Machine:
    """A pool with two replicas in its YAML and a policy. An earlier controller stored `allocation`. No process runs."""

    def __init__(
        self,
        layout: StateLayout,
        allocation: Allocation,
        target: Target,
        *others: Pool,
        slots: int | None = None,
        args: tuple[str, ...] = (),
        warm: int = 1,
    ) -> None:
        layout.make_directories()
        layout.secrets_dir.mkdir(exist_ok=True)
        layout.credentials("controller").write_text("t")
        settings = LocalSettings(state_dir=layout.root, max_engines=slots)
        self.layout = layout
        self.reconciler = Reconciler(
            layout,
            settings,
            target,
            until_published=_at_once,
            on_done=lambda revision, stalled: None,
            is_paused=lambda: False,
            counts={},
        )
        self.reconciler.set_desired("main@1", (Pool(POOL, 2, "m", args), *others))
        self.source = Source(self.reconciler.context, layout.registry_rows_file, lambda: None)
        self.scaling = LocalScaling(
            layout,
            settings,
            reconciler=self.reconciler,
            supervisor=Supervisor(layout, environ=os.environ, controller_pid=os.getpid()),
            source=self.source,
            is_suspended=lambda: False,
            allocations={POOL: allocation},
        )
        policy = POLICY.replace("warm: 1", f"warm: {warm}")
        self._policies = load(pool(POOL, bounds="minReplicas: 2, maxReplicas: 20"), policy)
        self.scaling.set_policies("main@1", self._policies)

    async def passes(self, enough: Callable[[], bool]) -> None:
        """Run passes as `run` does, with processes that change at once, until `enough` is true."""
        running = asyncio.get_running_loop().create_task(self.scaling.run())
        try:
            async with asyncio.timeout(30.0):
                for number in itertools.count(2):
                    if enough():
                        return
                    self.reconciler.wanted.settled = True
                    self.scaling.set_policies(f"main@{number}", self._policies)  # makes the next pass due
                    await asyncio.sleep(0.01)
        finally:
            running.cancel()
            await asyncio.wait([running])

    @property
    def shown(self) -> PoolSize:
        return next(each for each in self.scaling.pool_sizes() if each.pool == POOL)


async def _at_once(revision: str) -> None:
    return None


@asynccontextmanager
async def hung() -> AsyncIterator[tuple[int, asyncio.Event]]:
    """Run an agent that accepts requests and never answers; return its port and an event for the first request."""
    asked, writers = asyncio.Event(), []

    async def never(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        await reader.readline()
        asked.set()

    server = await asyncio.start_server(never, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1], asked
        for writer in writers:
            writer.close()
            await writer.wait_closed()


async def test_replica_after_a_warm_one_does_not_start_warm(layout: StateLayout) -> None:
    machine = Machine(layout, Allocation(3, frozenset({2})), Target("sim", 2))
    marks = [layout.standby_file(f"{POOL}-{number}") for number in (2, 7)]
    for mark in marks:  # the second belongs to an allocation that no longer exists
        mark.parent.mkdir(parents=True)
        mark.touch()
    await machine.passes(lambda: not any(mark.exists() for mark in marks))
    assert (machine.shown.serving, machine.shown.warm) == (2, 0)


async def test_hanging_agent_does_not_delay_processes(layout: StateLayout) -> None:
    async with hung() as (port, asked):
        machine = Machine(layout, Allocation(3, frozenset({2})), Target("sim"))
        machine.source.heard = report(replace(replica(0, "warm"), peer_port=port), replica(1), replica(2, "warm"))
        passing = asyncio.get_running_loop().create_task(machine.scaling.run())
        await asyncio.wait_for(asked.wait(), 30.0)
        assert [pool.replicas for pool in machine.reconciler.wanted.pools] == [3], "they follow while it is asked"
        passing.cancel()
        await asyncio.wait([passing])
        await machine.source.close()


async def test_scaled_up_pool_yields_to_declared_replicas_of_another(layout: StateLayout) -> None:
    machine = Machine(layout, Allocation(19), Target("sim"), Pool("other", 4, "m"))
    await machine.passes(lambda: machine.shown.serving == MAX_SLOTS - 4)
    assert [pool.replicas for pool in machine.reconciler.wanted.pools] == [MAX_SLOTS - 4, 4]


def test_stored_size_beyond_the_ports_is_ignored(layout: StateLayout) -> None:
    assert Machine(layout, Allocation(100_000), Target("sim")).shown.serving == MAX_SLOTS


async def test_real_engines_are_bounded_by_cores(layout: StateLayout) -> None:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        machine = Machine(layout, Allocation(2, frozenset({1})), Target("vllm"))
        await machine.passes(lambda: (machine.shown.serving, machine.shown.warm) == (1, 0))
    finally:
        os.sched_setaffinity(0, before)


async def test_forecast_survives_the_controller(layout: StateLayout) -> None:
    learnt = Memory(Demand(replica_per_s=777.0, looked_s=time.time()))
    Forecasts(layout.forecasts_file).keep({POOL: learnt}, 0.0)
    machine = Machine(layout, Allocation(2), Target("sim"))
    layout.forecasts_file.unlink()
    machine.source.heard = report(replica(0), replica(1))
    await machine.passes(layout.forecasts_file.exists)
    kept = Forecasts(layout.forecasts_file).known[POOL].demand
    assert kept.replica_per_s == 777.0
    assert kept.open_count == 1, "and it has looked"
