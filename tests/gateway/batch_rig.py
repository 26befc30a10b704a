"""Gateway processes with a store, and one engine that the test plays and counts."""

import asyncio
import contextlib
import json
import subprocess
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import openai
from openai.types import Batch

from functions.artifacts.s3 import S3Settings
from functions.fleet.bus import BusUnavailable
from functions.fleet.valkey_bus import ValkeyBus
from tests.gateway import sse
from tests.gateway.live import PlayedEngine, Served
from tests.gateway.processes import GatewayProcess
from tests.gateway.rig import ACME_KEY, POOL, heartbeat
from tests.ports import free_port

PATIENCE_S = 180.0  # upper bound for events that must happen: a lease of 20 s may have to expire first
CHAT = "/v1/chat/completions"


@dataclass
class BatchGateway(GatewayProcess):
    """A gateway process with a file store."""

    s3: S3Settings | None = None
    more: dict[str, str] = field(default_factory=dict)
    running: subprocess.Popen[bytes] | None = None

    @property
    def environment(self) -> dict[str, str]:
        assert self.s3 is not None
        credentials = self.folder / "s3.json"
        ours = self.s3.credentials
        credentials.write_text(
            json.dumps({"access_key_id": ours.access_key_id, "secret_access_key": ours.secret_access_key})
        )
        values = {"S3_ENDPOINT_URL": self.s3.endpoint_url, "S3_CREDENTIALS_FILE": str(credentials), **self.more}
        return super().environment | {f"SHOAL_GATEWAY_{name}": value for name, value in values.items()}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.plain_port}/v1"

    def client(self, key: str = ACME_KEY, retries: int = 0) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=self.url, api_key=key, max_retries=retries, timeout=PATIENCE_S)


@dataclass
class CountingEngine:
    """Engine that repeats each prompt and counts how often it received it. While `is_held`, it holds its answers."""

    asked: Counter[str] = field(default_factory=Counter)
    is_held: bool = False
    after: int = 0  # number of answers to send before `is_held` applies
    refuse_next: int = 0  # number of next requests to reject
    priorities: set[bytes] = field(default_factory=set)

    async def script(self, served: Served) -> None:
        said = served.body["messages"][-1]["content"]
        self.asked[said] += 1
        self.priorities.add(served.head.lower().split(b"x-vllm-priority:")[1].split(b"\r\n")[0].strip())
        if self.refuse_next > 0:
            self.refuse_next -= 1
            await served.answer(b'{"error": {"message": "busy"}}', status=503)
            return
        if said == "wrong":
            await served.answer(b'{"error": {"message": "no such thing"}}', status=400)
            return
        while self.is_held and self.asked.total() > self.after:
            await asyncio.sleep(0.02)
        await served.answer(sse.whole(served.model, f"you said {said}"))

    @contextlib.asynccontextmanager
    async def serving(self, bus_url: str, name: str = "played") -> AsyncIterator[PlayedEngine]:
        played = PlayedEngine(name, self.script)
        connections: set[asyncio.Task[Any] | None] = set()

        async def on_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            connections.add(asyncio.current_task())
            await played.on_connection(reader, writer)

        server = await asyncio.start_server(on_connection, "127.0.0.1", 0)
        played.port = server.sockets[0].getsockname()[1]
        stopping = asyncio.Event()
        beats = asyncio.create_task(_heartbeat(bus_url, name, played.port, stopping))
        try:
            yield played
        finally:
            self.is_held = False
            stopping.set()
            await beats
            server.close()
            for served in played.served:
                served.writer.transport.abort()
            await asyncio.wait([one for one in connections if one is not None] or [beats], timeout=5.0)
            await server.wait_closed()


@dataclass
class Way:
    """Proxy to the store that can be closed: it then refuses connections and cuts open ones."""

    to_port: int
    port: int = field(default_factory=free_port)
    _server: asyncio.Server | None = None
    _open: set[asyncio.StreamWriter] = field(default_factory=set)
    _is_closed: bool = False

    async def open(self) -> None:
        self._is_closed = False
        self._server = await asyncio.start_server(self._pass, "127.0.0.1", self.port)

    async def close(self) -> None:
        self._is_closed = True
        if self._server is not None:
            self._server.close()
        for writer in list(self._open):
            writer.transport.abort()
        async with asyncio.timeout(PATIENCE_S):
            while self._open:
                await asyncio.sleep(0.01)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        onward_reader, onward_writer = await asyncio.open_connection("127.0.0.1", self.to_port)
        if self._is_closed:  # closed while this connection was being opened
            writer.transport.abort()
            onward_writer.transport.abort()
            return
        self._open |= {writer, onward_writer}
        await asyncio.gather(_copy(reader, onward_writer), _copy(onward_reader, writer))
        self._open -= {writer, onward_writer}


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.transport.abort()


async def _heartbeat(bus_url: str, name: str, port: int, stopping: asyncio.Event) -> None:
    """Publish heartbeats like the replica's agent until `stopping` is set: a cancellation could hit inside the bus
    client."""
    sequence = 0
    async with ValkeyBus(bus_url) as bus:
        while not stopping.is_set():
            sequence += 1
            with contextlib.suppress(BusUnavailable):
                await bus.publish(heartbeat(name, port, sequence=sequence))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.2):
                    await stopping.wait()


def line(custom_id: str, content: str | None = None, **changes: Any) -> dict[str, Any]:
    body = {"model": POOL, "messages": [{"role": "user", "content": content or custom_id}], "max_tokens": 4}
    return {"custom_id": custom_id, "method": "POST", "url": CHAT, "body": body} | changes


def as_file(*lines: dict[str, Any] | bytes) -> bytes:
    return b"\n".join(one if isinstance(one, bytes) else json.dumps(one).encode() for one in lines) + b"\n"


async def create_batch(client: openai.AsyncOpenAI, *lines: dict[str, Any] | bytes, window: Any = "24h") -> Batch:
    file = await client.files.create(file=("input.jsonl", as_file(*lines)), purpose="batch")
    return await client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window=window)


async def until(
    client: openai.AsyncOpenAI, batch_id: str, *statuses: str, done: int = 0, timeout_s: float = PATIENCE_S
) -> Batch:
    """Return the batch once it has one of the statuses (with `done` lines done)."""
    seen: list[str] = []
    end_s = time.monotonic() + timeout_s
    while time.monotonic() < end_s:
        with contextlib.suppress(openai.APIConnectionError):
            batch = await client.batches.retrieve(batch_id)
            counts = batch.request_counts
            seen.append(f"{batch.status} {counts}")
            if batch.status in statuses and counts is not None and counts.completed + counts.failed >= done:
                return batch
        await asyncio.sleep(0.2)
    raise AssertionError(f"not {statuses} within {timeout_s} s; last seen: {seen[-3:]}")


async def results(client: openai.AsyncOpenAI, file_id: str | None) -> list[dict[str, Any]]:
    """Return the lines of an output or error file."""
    if file_id is None:
        return []
    content = await client.files.content(file_id)
    return [json.loads(one) for one in content.text.splitlines()]


async def metric(gateway: BatchGateway, name: str) -> float:
    url = f"http://127.0.0.1:{gateway.metrics_port}/metrics"
    async with httpx.AsyncClient(timeout=PATIENCE_S) as http, asyncio.timeout(PATIENCE_S):
        while (answer := await http.get(url)).status_code == 503:  # its loop was busy for 2 s
            await asyncio.sleep(0.1)
    assert answer.status_code == 200, answer.text
    return sum(float(row.rsplit(" ", 1)[1]) for row in answer.text.splitlines() if row.startswith(name))


async def until_metric(gateway: BatchGateway, name: str, value: float) -> None:
    """Wait until the metric has this value: it is counted just after its effect is visible."""
    async with asyncio.timeout(PATIENCE_S):
        while await metric(gateway, name) != value:
            await asyncio.sleep(0.1)


def gateway(folder: Path, bus_url: str, certificate: tuple[Path, Path], s3: S3Settings, **more: Any) -> BatchGateway:
    folder.mkdir(parents=True, exist_ok=True)
    return BatchGateway(folder, bus_url, certificate, s3=s3, **more)
