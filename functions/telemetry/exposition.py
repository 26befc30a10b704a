"""`/metrics` on a port of its own, rendered off the loop.

Rendering a thousand label sets takes 139 ms, which on the loop would stop every stream; a thread shares the
interpreter in slices of 5 ms instead. The gauges are refreshed on the loop first, since only it may read its state.
"""

import asyncio
import socket
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any, TypeVar
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer
from wsgiref.types import StartResponse

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

_REFRESH_TIMEOUT_S = 2.0

T = TypeVar("T")


class _Silent(WSGIRequestHandler):
    timeout = 5.0  # a scraper that connects and says nothing must not hold the port

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """A scrape a few times a minute is no news."""


class MetricsServer:
    """Serves one registry on a socket that is already listening; `probes` are further pages, by path, for a process
    that has no other server: each says what is wrong, or nothing."""

    def __init__(
        self,
        listener: socket.socket,
        registry: CollectorRegistry,
        refresh: Callable[[], None],
        loop: asyncio.AbstractEventLoop,
        probes: Mapping[str, Callable[[], str]] | None = None,
    ) -> None:
        self._registry = registry
        self._refresh = refresh
        self._loop = loop
        self._probes = probes or {}
        host, port = listener.getsockname()[:2]
        self._server = WSGIServer((host, port), _Silent, bind_and_activate=False)
        self._server.socket.close()
        self._server.socket = listener
        self._server.server_name, self._server.server_port = host, port
        self._server.setup_environ()
        self._server.set_app(self._answer)
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _answer(self, environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        path = str(environ.get("PATH_INFO"))
        if path in self._probes:
            return self._probed(self._probes[path], start_response)
        if path not in ("/metrics", "/metrics/"):
            start_response("404 Not Found", [("content-type", "text/plain")])
            return [b"the metrics are at /metrics\n"]
        try:
            self._on_the_loop(self._refresh)
        except FutureTimeoutError:
            return _stuck(start_response)
        start_response("200 OK", [("content-type", CONTENT_TYPE_LATEST)])
        return [generate_latest(self._registry)]

    def _probed(self, probe: Callable[[], str], start_response: StartResponse) -> Iterable[bytes]:
        try:
            wrong = self._on_the_loop(probe)
        except FutureTimeoutError:
            return _stuck(start_response)
        start_response("503 Service Unavailable" if wrong else "200 OK", [("content-type", "text/plain")])
        return [f"{wrong or 'ok'}\n".encode()]

    def _on_the_loop(self, ask: Callable[[], T]) -> T:
        return asyncio.run_coroutine_threadsafe(_called(ask), self._loop).result(_REFRESH_TIMEOUT_S)


async def _called(ask: Callable[[], T]) -> T:
    return ask()


def _stuck(start_response: StartResponse) -> Iterable[bytes]:
    start_response("503 Service Unavailable", [("content-type", "text/plain")])
    return [b"the event loop did not answer in time\n"]
