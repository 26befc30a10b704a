"""Checks before the routes: the media type, vLLM's common headers, and the faults that affect every request."""

import asyncio
from uuid import uuid4

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from functions.engines.sim.connection import ClientConnection
from functions.engines.sim.faults import FaultBox

_CONTROL_PREFIX = "/sim/"


async def json_only(request: Request) -> None:
    media_type = request.headers.get("content-type", "").lower().split(";", maxsplit=1)[0]
    if media_type != "application/json":
        raise RequestValidationError(["Unsupported Media Type: Only 'application/json' is allowed"])


class CommonHeaders:
    """Middleware that adds `Vary: Origin` and, with `--enable-request-id-headers`, an echoed or new X-Request-Id."""

    def __init__(self, app: ASGIApp, *, request_ids: bool) -> None:
        self._app = app
        self._request_ids = request_ids

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(raw=list(message["headers"]))
                headers.append("vary", "Origin")
                if self._request_ids:
                    headers.append("x-request-id", Headers(scope=scope).get("x-request-id") or uuid4().hex)
                message = {**message, "headers": headers.raw}
            await send(message)

        await self._app(scope, receive, send_with_headers)


class FaultGate:
    """Middleware that applies `hang` and `reset_connections` before anything else happens; /sim/* passes."""

    def __init__(self, app: ASGIApp, *, faults: FaultBox) -> None:
        self._app = app
        self._faults = faults

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        spared = scope["type"] != "http" or scope["path"].startswith(_CONTROL_PREFIX)
        if not spared and self._faults.now.reset_connections:
            ClientConnection.from_scope(scope).reset()
        elif not spared and self._faults.now.hang:
            await _until_left(ClientConnection.from_scope(scope))
        else:
            await self._app(scope, receive, send)


async def _until_left(connection: ClientConnection) -> None:
    left = asyncio.Event()
    connection.set_lost_callback(left.set)
    if not connection.closing:
        await left.wait()
