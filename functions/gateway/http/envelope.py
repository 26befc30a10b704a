"""Around every ASGI route: a request id, well-formed headers and path, and errors in OpenAI's shape, always.

Pure ASGI and outermost, so that nothing (a handler's exception, an unknown path) can answer in another shape.
"""

import logging
from urllib.parse import unquote_to_bytes

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from functions.gateway import errors
from functions.gateway.errors import ErrorAnswer, Refused
from functions.gateway.http.headers import check_headers, request_id_of
from functions.gateway.intake.routes import dialect_of
from functions.gateway.request import replies as answers
from functions.gateway.services import Services

_log = logging.getLogger(__name__)
# What could be read as another path by another server has no route here. Only a model's id may be percent-encoded:
# SDKs send `acme%2Fbot`.
_ENCODED_BELOW = b"/v1/models/"
_TRICKS = (b"..", b"//", b"\\", b"\0", b";", b"%")


class Envelope:
    def __init__(self, app: ASGIApp, services: Services) -> None:
        self._app = app
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return  # no websockets here: returning without accepting refuses them
        request_id = request_id_of(scope["headers"])
        scope["state"] = {**scope.get("state", {}), "request_id": request_id}
        started = False

        async def send_with_id(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                message["headers"] = _with_request_id(message.get("headers", []), request_id)
            await send(message)

        try:
            self._check(scope)
            await self._app(scope, receive, send_with_id)
        except Refused as refused:
            await self._refuse(send, scope["path"], request_id, refused.answer)
        except Exception:
            _log.exception("request %s failed", request_id)
            if started:
                raise  # an answer is under way: the server must cut it, not append to it
            await self._refuse(send, scope["path"], request_id, errors.internal_error())

    def _check(self, scope: Scope) -> None:
        check_headers(scope["headers"], self._services.limits)
        raw_path: bytes = scope.get("raw_path") or scope["path"].encode()
        path = unquote_to_bytes(raw_path)
        encoded = b"%" in raw_path and not raw_path.startswith(_ENCODED_BELOW)
        if encoded or any(trick in path for trick in _TRICKS):
            raise Refused(errors.not_found(scope["method"], scope["path"]))

    async def _refuse(self, send: Send, path: str, request_id: str, answer: ErrorAnswer) -> None:
        self._services.metrics.refused(answer.status)
        body = dialect_of(path).error_body(answer, request_id)
        headers = [*answers.error_headers(request_id, answer), (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        await send({"type": "http.response.body", "body": body})


def _with_request_id(headers: list[tuple[bytes, bytes]], request_id: str) -> list[tuple[bytes, bytes]]:
    if any(name == b"x-request-id" for name, _ in headers):
        return list(headers)
    return [*headers, (b"x-request-id", request_id.encode())]
