"""`/metrics` on a port of its own, rendered off the event loop.

Rendering a thousand label sets takes 139 ms, which on the event loop would stop every stream; a thread shares the
interpreter in slices of 5 ms instead. The gauges are refreshed on the event loop first, which owns their state.

The thread has an event loop of its own, with the guards of every server here (`functions.http`): a client that
connects and sends only a byte now and then occupies one connection, not the port.
"""

import asyncio
import socket
import threading
from collections.abc import Callable, Mapping
from typing import TypeVar

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from functions.http.connections import Connections
from functions.http.guard import Bounds, Guard, Receive, Scope, Send
from functions.http.listening import serve

_REFRESH_TIMEOUT_S = 2.0
_CONNECTIONS = 32  # a scraper or two, a kubelet, a person
_BOUNDS = Bounds(head_s=5.0, body_s=5.0, body_bytes=64 * 1024, write_stall_s=10.0, pipelined=2)
_START_TIMEOUT_S = 10.0
_PLAIN = "text/plain; charset=utf-8"

T = TypeVar("T")
Answer = tuple[int, str, bytes]


class MetricsServer:
    """A server for one registry on a listening socket. `probes` are further pages by path, for a process without
    another server: each returns the problem, or an empty text."""

    def __init__(
        self,
        listener: socket.socket,
        registry: CollectorRegistry,
        refresh: Callable[[], None],
        loop: asyncio.AbstractEventLoop,
        probes: Mapping[str, Callable[[], str]] | None = None,
    ) -> None:
        self._listener = listener
        self._registry = registry
        self._refresh = refresh
        self._loop = loop
        self._probes = probes or {}
        self._close: Callable[[], object] = lambda: None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="metrics", daemon=True)
        self._started = threading.Event()

    def start(self) -> None:
        self._thread.start()
        self._started.wait(_START_TIMEOUT_S)

    def close(self) -> None:
        self._close()
        if self._thread.is_alive():
            self._thread.join()
        self._listener.close()

    async def _run(self) -> None:
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        self._close = lambda: loop.call_soon_threadsafe(ended.set)
        guard = Guard(_BOUNDS, Connections(_CONNECTIONS))
        server = await serve(self, self._listener, guard)
        self._started.set()
        await ended.wait()
        self._close = lambda: None
        server.close()
        for connection in guard.connections:
            connection.give_way()
        await asyncio.sleep(0)  # one iteration later, transports are closed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle an ASGI request, on the thread's event loop."""
        status, kind, body = await self._answer(scope["path"])
        headers = [(b"content-type", kind.encode()), (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _answer(self, path: str) -> Answer:
        try:
            if path in self._probes:
                wrong = await self._on_the_loop(self._probes[path])
                return 503 if wrong else 200, _PLAIN, f"{wrong or 'ok'}\n".encode()
            if path not in ("/metrics", "/metrics/"):
                return 404, _PLAIN, b"the metrics are at /metrics\n"
            await self._on_the_loop(self._refresh)
        except TimeoutError:
            return 503, _PLAIN, b"the event loop did not answer in time\n"
        return 200, CONTENT_TYPE_LATEST, generate_latest(self._registry)

    async def _on_the_loop(self, ask: Callable[[], T]) -> T:
        """Call a function on the process's event loop and return its result; TimeoutError after _REFRESH_TIMEOUT_S."""
        answer = asyncio.run_coroutine_threadsafe(_call(ask), self._loop)
        async with asyncio.timeout(_REFRESH_TIMEOUT_S):
            return await asyncio.wrap_future(answer)


async def _call(ask: Callable[[], T]) -> T:
    return ask()
