"""Around every request: its id, its count, and the log of what nobody foresaw.

Pure ASGI, outermost, so that errors of the framework carry the id as well.
"""

import logging
import re
import uuid

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from functions.registry.metrics import Metrics

_log = logging.getLogger(__name__)
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
_UNROUTED = "(none)"  # one label for all paths that are no route: a scanner must not make series


class Envelope:
    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = _request_id(Headers(scope=scope).get("x-request-id"))
        scope["shoal_request_id"] = request_id  # the audit names it
        status = 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["x-request-id"] = request_id
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except Exception:
            _log.exception("request %s failed", request_id)  # the framework has answered, and raised again for us
        finally:
            route = getattr(scope.get("route"), "path", _UNROUTED)
            self._metrics.requests.labels(route=route, method=_method(scope), code=status).inc()


def _request_id(given: str | None) -> str:
    if given is not None and _REQUEST_ID.fullmatch(given):
        return given
    return f"req-{uuid.uuid4().hex}"


def _method(scope: Scope) -> str:
    method: str = scope["method"]
    return method if method in {"GET", "HEAD", "PUT", "POST", "DELETE", "OPTIONS", "PATCH"} else "other"
