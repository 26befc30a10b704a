"""A supervisor with real children in a temporary state directory, which is clean afterwards."""

import asyncio
import os
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from functions.controller.local.adoption import end_now, fleet_processes
from functions.controller.local.instances import Instance, ProcessLedger, read_ledger
from functions.controller.local.layout import StateLayout
from functions.controller.local.lifecycle import Phase
from functions.controller.local.operations import Operations
from functions.controller.local.probes import ProcessProber
from functions.controller.local.spec import HttpProbe, ProcessSpec, Role, Timing
from functions.controller.local.supervisor import Supervisor
from functions.decisions.health.backoff import BackoffPolicy
from tests import ports

TINY_SERVER = Path(__file__).parent / "tiny_server.py"
IMPATIENT = BackoffPolicy(base_s=0.2, cap_s=1.0)
PATIENCE_S = 60.0  # for every expected event, also on a busy machine


def free_port(above: int = 0) -> int:
    """Return a free port; with `above`, one for which the port that much higher is free too."""
    while True:
        port = ports.free_port()
        with socket.socket() as second, suppress(OSError, OverflowError):
            second.bind(("127.0.0.1", port + above if above else 0))
            return port


def tiny(
    name: str = "one",
    *arguments: str,
    role: Role = "engine",
    port: int | None = None,
    timing: Timing | None = None,
    after: tuple[str, ...] = (),
    stops_before: tuple[str, ...] = (),
    takes_over: bool = False,
    live: bool = False,
) -> ProcessSpec:
    port = port if port is not None else free_port()
    probe = HttpProbe(f"http://127.0.0.1:{port}/")
    return ProcessSpec(
        name=name,
        role=role,
        argv=(sys.executable, str(TINY_SERVER), str(port), *arguments),
        readiness=probe,
        liveness=probe if live else None,
        timing=timing or Timing(start_s=PATIENCE_S, drain_s=2, liveness_failing_s=1),
        after=after,
        stops_before=stops_before,
        takes_over=takes_over,
        port=port,
    )


@dataclass
class Shop:
    """One controller's supervisor: `async with shop.open()`. As in production, closing it kills no child."""

    layout: StateLayout
    supervisor: Supervisor = field(init=False)
    operations: Operations = field(init=False)
    _running: "asyncio.Task[None] | None" = None

    async def open(self) -> "Shop":
        self.supervisor = Supervisor(self.layout, environ=os.environ, controller_pid=os.getpid(), backoff=IMPATIENT)
        # A child that waits for the processor must not look unready; only its own answer counts.
        self.supervisor._prober = ProcessProber(PATIENCE_S)
        self.operations = Operations(self.supervisor)
        self._running = asyncio.get_running_loop().create_task(self.supervisor.run())
        return self

    async def die(self) -> None:
        """Leave what a SIGKILL of the controller leaves: the children, and the ledger as last written."""
        if self._running is not None:
            self._running.cancel()
            with suppress(asyncio.CancelledError):
                await self._running
            self._running = None
            await self.supervisor.close()

    def reap(self) -> None:
        """Wait for children that ended; in production, init adopts the children of a killed controller."""
        for instance in self.supervisor.instances.values():
            if instance.child is not None and instance.child.process is not None:
                instance.child.process.wait(timeout=PATIENCE_S)

    async def reaches(self, name: str, phase: Phase, timeout_s: float = PATIENCE_S) -> Instance:
        def there() -> bool:
            instance = self.supervisor.current(name)
            return instance is not None and instance.state.phase == phase

        assert await self.supervisor.wait_until(there, timeout_s), f"{name} did not become {phase}"
        instance = self.supervisor.current(name)
        assert instance is not None
        return instance

    async def settles(self, *names: str) -> None:
        """Wait until exactly these instances are left."""
        found = await self.supervisor.wait_until(lambda: sorted(self.supervisor.instances) == sorted(names), PATIENCE_S)
        assert found, f"there are {sorted(self.supervisor.instances)}, not {sorted(names)}"

    def ledger(self) -> ProcessLedger:
        return read_ledger(self.layout.ledger_file)


@pytest.fixture
def layout(tmp_path: Path) -> StateLayout:
    layout = StateLayout.at(tmp_path / "state")
    layout.make_directories()
    return layout


@pytest.fixture
async def shop(layout: StateLayout) -> AsyncIterator[Shop]:
    shop = await Shop(layout).open()
    yield shop
    await shop.die()
    end_now(fleet_processes(layout, ProcessLedger()))
    shop.reap()
