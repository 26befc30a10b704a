"""The registry's routes for tenants at the gateway's address: versions, channels, artifacts, rollouts, usage.

    a tenant's key (401) → its rate (429) → its share of open requests (429, 503) → the registry, with the same key

The registry checks the key's rights (scopes, model ownership) and answers; its messages pass unchanged. Only `ROUTES`
are forwarded: snapshot, fleet, keys, audit, console and `/internal` are not reachable here. The installation's token
is no tenant's key, so it is rejected here too. Bodies are streamed and not buffered.

If the registry is unreachable, these routes, and no others, answer 503 (docs/decisions/0025).
"""

import re
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from typing import Final

import httpx
from fastapi import FastAPI, Request
from fastapi.responses import Response, StreamingResponse
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from functions.api.ids import TenantId
from functions.gateway import errors
from functions.gateway.errors import ErrorAnswer, RequestRejected
from functions.gateway.http.headers import announced_bytes
from functions.gateway.intake.callers import identify_manager
from functions.gateway.services import Services
from functions.gateway.tenant_limits import TenantShares

UPLOADS: Final = "/v1/artifacts"
_MODEL: Final = "/v1/models/{tenant}/{name}"
ROUTES: Final = (
    ("GET", f"{_MODEL}/versions"),
    ("PUT", f"{_MODEL}/versions/{{version}}"),
    ("DELETE", f"{_MODEL}/versions/{{version}}"),
    ("POST", f"{_MODEL}/channels/{{channel}}"),
    ("DELETE", f"{_MODEL}/channels/{{channel}}"),
    ("DELETE", _MODEL),
    ("POST", UPLOADS),
    ("GET", f"{UPLOADS}/{{digest}}"),
    ("GET", "/v1/usage"),
    ("GET", "/v1/rollouts"),
    ("GET", "/v1/rollouts/{rollout}"),
    ("POST", "/v1/rollouts/{rollout}/{verb}"),
)
# one path segment: nothing that another server could parse differently
_SEGMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]*")
_SENT = ("content-type", "content-length", "if-match", "accept")
_ANSWERED = ("content-type", "content-length", "etag", "retry-after", "cache-control", "www-authenticate")
_LEFT = 499
_OPEN, _OPEN_OF_TENANT = 64, 16
_UPLOADS_AT_ONCE, _UPLOADS_OF_TENANT = 8, 2  # the same numbers as one registry accepts
_CONNECT_S, _WRITE_S, _ANSWER_S = 2.0, 30.0, 30.0
_CHECKED_S = 600.0  # an upload is answered after its checks
_BLOCK_BYTES = 64 * 1024


class RegistryForwarding:
    """Forwards tenants' requests. Owned by one event loop. `client` has the registry's address and trust."""

    def __init__(self, services: Services, client: httpx.AsyncClient) -> None:
        self._services = services
        self._client = client
        self._open = TenantShares(_OPEN, _OPEN_OF_TENANT, _too_many)
        self._uploads = TenantShares(_UPLOADS_AT_ONCE, _UPLOADS_OF_TENANT, _too_many_uploads)

    def add_routes(self, app: FastAPI) -> None:
        for method, path in ROUTES:
            app.add_api_route(path, self._forward, methods=[method], response_class=Response)

    async def close(self) -> None:
        await self._client.aclose()

    async def _forward(self, request: Request) -> Response:
        services = self._services
        _, caller, key = identify_manager(services, request)
        if not all(map(_SEGMENT.fullmatch, request.path_params.values())):
            raise RequestRejected(errors.not_found(request.method, request.scope["path"]))
        most_bytes = None if _is_upload(request) else services.limits.body_bytes
        if most_bytes is not None and (announced_bytes(request.scope["headers"]) or 0) > most_bytes:
            raise RequestRejected(errors.body_too_large(most_bytes))
        async with AsyncExitStack() as held:
            self._reserve(held, request, caller.tenant)
            try:
                answer = await self._client.send(self._build_request(request, key), stream=True)
            except ClientDisconnect:
                return Response(status_code=_LEFT)  # the client has left
            except httpx.HTTPError as error:
                raise RequestRejected(_registry_unavailable()) from error
            held.push_async_callback(answer.aclose)
            return _Relayed(answer, held.pop_all())

    def _build_request(self, request: Request, key: str) -> httpx.Request:
        is_upload = _is_upload(request)
        query = request.scope["query_string"].decode("latin-1")
        return self._client.build_request(
            request.method,
            request.scope["path"] + (f"?{query}" if query else ""),
            headers=_sent_headers(request, key),
            content=_body(request, None if is_upload else self._services.limits.body_bytes),
            timeout=httpx.Timeout(_CHECKED_S if is_upload else _ANSWER_S, connect=_CONNECT_S, write=_WRITE_S),
        )

    def _reserve(self, held: AsyncExitStack, request: Request, tenant: TenantId) -> None:
        shares = self._uploads if _is_upload(request) else self._open
        held.enter_context(shares.reserved(tenant))


class _Relayed(StreamingResponse):
    """The registry's streamed answer; its share is released after the last byte or when the client leaves."""

    def __init__(self, answer: httpx.Response, held: AsyncExitStack) -> None:
        self._held = held
        super().__init__(answer.aiter_raw(_BLOCK_BYTES), answer.status_code, _answer_headers(answer.headers))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._held.aclose()


def _sent_headers(request: Request, key: str) -> dict[bytes, bytes]:
    """Return the headers to forward, with this key and the request id, as bytes: they may have bytes from 0x80 on."""
    sent = {name.encode(): request.headers[name].encode("latin-1") for name in _SENT if name in request.headers}
    if announced_bytes(request.scope["headers"]) == 0:
        sent[b"content-length"] = b"0"
    own = {b"authorization": key.encode("latin-1"), b"x-request-id": request.state.request_id.encode()}
    return {**sent, **own, b"accept-encoding": b"identity"}


def _answer_headers(given: Mapping[str, str]) -> dict[str, str]:
    return {name: given[name] for name in _ANSWERED if name in given}


async def _body(request: Request, most_bytes: int | None) -> AsyncIterator[bytes]:
    size_bytes = 0
    async for block in request.stream():
        size_bytes += len(block)
        if most_bytes is not None and size_bytes > most_bytes:
            raise RequestRejected(errors.body_too_large(most_bytes))
        if block:
            yield block


def _is_upload(request: Request) -> bool:
    return request.method == "POST" and bool(request.scope["path"] == UPLOADS)


def _too_many() -> RequestRejected:
    message = "Too many requests to the registry are open. Wait for an answer first."
    return RequestRejected(ErrorAnswer(429, "requests", "too_many_requests", message, retry_after_s=1))


def _too_many_uploads() -> RequestRejected:
    message = (
        f"Too many uploads are under way: the limit is {_UPLOADS_OF_TENANT} a tenant and {_UPLOADS_AT_ONCE} in all. "
        "Wait for one to end."
    )
    return RequestRejected(ErrorAnswer(429, "requests", "too_many_uploads", message, retry_after_s=5))


def _registry_unavailable() -> ErrorAnswer:
    message = "The registry is unreachable. Models are still served, but cannot be managed now. Try again shortly."
    return errors.unavailable(message, "registry_unavailable", 5)
