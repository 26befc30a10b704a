"""`/metrics` on a port of its own, rendered off the loop.

Rendering a thousand label sets takes 139 ms, which on the loop would stop every stream; a thread shares the
interpreter in slices of 5 ms instead. The gauges are refreshed on the loop first, since only it may read its state.
"""

import asyncio
import socket
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer
from wsgiref.types import StartResponse

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

_REFRESH_TIMEOUT_S = 2.0


class _Silent(WSGIRequestHandler):
    timeout = 5.0  # a scraper that connects and says nothing must not hold the port

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """A scrape a few times a minute is no news."""


class MetricsServer:
    """Serves one registry on a socket that is already listening."""

    def __init__(
        self,
        listener: socket.socket,
        registry: CollectorRegistry,
        refresh: Callable[[], None],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._registry = registry
        self._refresh = refresh
        self._loop = loop
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
        if environ.get("PATH_INFO") not in ("/metrics", "/metrics/"):
            start_response("404 Not Found", [("content-type", "text/plain")])
            return [b"the metrics are at /metrics\n"]
        try:
            asyncio.run_coroutine_threadsafe(self._refreshed(), self._loop).result(_REFRESH_TIMEOUT_S)
        except FutureTimeoutError:
            start_response("503 Service Unavailable", [("content-type", "text/plain")])
            return [b"the event loop did not answer in time\n"]
        start_response("200 OK", [("content-type", CONTENT_TYPE_LATEST)])
        return [generate_latest(self._registry)]

    async def _refreshed(self) -> None:
        self._refresh()
