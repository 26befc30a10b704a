"""A registry served by a real uvicorn on a free port, in the test's own event loop."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import uvicorn

from functions.api import snapshot as snapshots
from functions.api.snapshot import Snapshot
from functions.fleet.bus import BusUnavailable
from functions.fleet.heartbeat import Heartbeat
from functions.fleet.role_credentials import RoleCredentials
from functions.fleet.snapshots import SNAPSHOT_PATH
from functions.registry.app import make_app
from functions.registry.fleet_watch import FleetWatch
from functions.registry.store import SnapshotStore

TOKEN = "internal-token"
NOW_UNIX_S = 1000.0


class ScriptedBus:
    """A bus in this process: items put into `heartbeats` reach the listeners; `lose` ends every listener."""

    def __init__(self) -> None:
        self.stored: list[bytes] = []
        self.heartbeats: asyncio.Queue[bytes | None] = asyncio.Queue()

    async def publish(self, heartbeat: Heartbeat) -> None:
        raise BusUnavailable("nobody publishes here")

    async def listen(self) -> AsyncIterator[list[bytes]]:
        yield self.stored
        while (message := await self.heartbeats.get()) is not None:
            yield [message]
        raise BusUnavailable("lost")

    def lose(self) -> None:
        self.heartbeats.put_nowait(None)

    async def close(self) -> None:
        return


class Rig:
    def __init__(self, folder: Path, url: str, max_waiters: int) -> None:
        self.now_s = 0.0
        self.url = url
        self.file = folder / "snapshot.json"
        self.bus = ScriptedBus()
        self.store = SnapshotStore(self.file, max_waiters)
        self.fleet = FleetWatch(self.bus, clock=lambda: self.now_s)
        headers = {"authorization": f"Bearer {TOKEN}"}
        self.client = httpx.AsyncClient(base_url=url, headers=headers, timeout=20, verify=False)  # plain HTTP

    async def get(self, path: str, **params: Any) -> httpx.Response:
        return await self.client.get(path, params=params)

    async def put(self, it: Snapshot) -> httpx.Response:
        return await self.client.put(SNAPSHOT_PATH, content=snapshots.encode(it))

    async def until_waiters(self, count: int) -> None:
        async with asyncio.timeout(5):
            while self.store.waiters != count:
                await asyncio.sleep(0.005)


@asynccontextmanager
async def serving(folder: Path, max_waiters: int = 100) -> AsyncIterator[Rig]:
    listener = socket.create_server(("127.0.0.1", 0))
    rig = Rig(folder, f"http://127.0.0.1:{listener.getsockname()[1]}", max_waiters)
    rig.store.load()
    app = make_app(rig.store, rig.fleet, RoleCredentials(TOKEN), wall_clock=lambda: NOW_UNIX_S)
    server = uvicorn.Server(uvicorn.Config(app, http="httptools", lifespan="off", log_config=None, access_log=False))
    async with asyncio.TaskGroup() as group, rig.client:
        group.create_task(server._serve([listener]))  # `serve` would take over the test run's signals
        while not server.started:
            await asyncio.sleep(0.005)
        try:
            yield rig
        finally:
            rig.store.close()
            server.should_exit = True


def error_of(response: httpx.Response) -> dict[str, Any]:
    """Check the common shape of an error response and return its error."""
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert response.headers["x-request-id"]
    error: dict[str, Any] = body["error"]
    return error
