"""ASGI application: all routes off the fast lane, and the engine routes for connections that cannot use it.

`GatewayEnvelope` is the outermost layer, in pure ASGI. It checks headers and paths, adds the request id to every
answer, and writes errors in the shape of the route's API, also for an unknown path or a handler's exception.
Optional parts add their routes with a `RouteProvider`.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import unquote_to_bytes

import orjson
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.routing import Route as AsgiRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from functions.gateway import errors
from functions.gateway.errors import ErrorAnswer, RequestRejected, model_not_found
from functions.gateway.gateway import Gateway
from functions.gateway.http.cors import Headers
from functions.gateway.http.headers import check_headers, request_id_of
from functions.gateway.http.plain import PlainEndpoint
from functions.gateway.intake.callers import identify_lookup
from functions.gateway.intake.listing import RecentListings, describe_model, page_of
from functions.gateway.intake.routes import ROUTES, dialect_of
from functions.gateway.openapi import document
from functions.gateway.request import replies
from functions.gateway.services import Services

_log = logging.getLogger(__name__)
# Paths that another server could read differently have no route. Only a model's id may be percent-encoded: SDKs send
# `acme%2Fbot`.
_ENCODED_BELOW = b"/v1/models/"
_ANTHROPICS = "/v1/messages"  # Anthropic's SDK reads the request id from another header
# Aliases of routes that clients of vLLM, Jina, Cohere and load balancers use.
_ALSO = {
    **{f"/{name}": f"/v1/{name}" for name in ("rerank", "score", "classify", "tokenize", "detokenize")},
    "/v2/rerank": "/v1/rerank",
    "/ping": "/healthz",
}
_TRICKS = (b"..", b"//", b"\\", b"\0", b";", b"%")


class GatewayEnvelope:
    def __init__(self, app: ASGIApp, services: Services) -> None:
        self._app = app
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return  # no websockets: returning without accepting rejects them
        if scope["http_version"] == "1.0":  # HTTP/1.0 has no Host header; load balancers probe with it by default
            scope["headers"] = _with_host(scope["headers"])
        if (path := _ALSO.get(scope["path"])) is not None and scope.get("raw_path") in (None, scope["path"].encode()):
            scope.update(path=path, raw_path=path.encode())
        request_id, origins = request_id_of(scope["headers"]), self._services.origins
        scope["state"] = {**scope.get("state", {}), "request_id": request_id}
        started = False
        readable = origins.answer_headers(scope["headers"])

        async def send_with_id(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                message["headers"] = _with_request_id(message.get("headers", []), request_id) + readable
                if scope["path"].startswith(_ANTHROPICS):
                    message["headers"].append((b"request-id", request_id.encode()))
            await send(message)

        try:
            self._check(scope)
            if (allowed := origins.preflight(scope["method"], scope["headers"])) is not None:
                await send({"type": "http.response.start", "status": 204, "headers": allowed})
                await send({"type": "http.response.body", "body": b""})
                return
            await self._app(scope, receive, send_with_id)
        except RequestRejected as refused:
            await self._refuse(send, scope["path"], request_id, refused.answer, readable)
        except Exception:
            _log.exception("request %s failed", request_id)
            if started:
                raise  # an answer has started: the server must cut it, not append to it
            await self._refuse(send, scope["path"], request_id, errors.internal_error(), readable)

    def _check(self, scope: Scope) -> None:
        check_headers(scope["headers"], self._services.limits)
        raw_path: bytes = scope.get("raw_path") or scope["path"].encode()
        path = unquote_to_bytes(raw_path)
        encoded = b"%" in raw_path and not raw_path.startswith(_ENCODED_BELOW)
        if encoded or any(trick in path for trick in _TRICKS):
            raise RequestRejected(errors.not_found(scope["method"], scope["path"]))

    async def _refuse(self, send: Send, path: str, request_id: str, answer: ErrorAnswer, readable: Headers) -> None:
        self._services.metrics.refused(answer.status)
        body = dialect_of(path).error_body(answer, request_id)
        headers = [*replies.error_headers(request_id, answer), (b"content-length", b"%d" % len(body)), *readable]
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        await send({"type": "http.response.body", "body": body})


def _with_request_id(headers: list[tuple[bytes, bytes]], request_id: str) -> list[tuple[bytes, bytes]]:
    if any(name == b"x-request-id" for name, _ in headers):
        return list(headers)
    return [*headers, (b"x-request-id", request_id.encode())]


def _with_host(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    return headers if any(name == b"host" for name, _ in headers) else [*headers, (b"host", b"")]


RouteProvider = Callable[[FastAPI], None]  # function that adds the routes of an optional part


def make_app(gateway: Gateway, parts: Iterable[RouteProvider] = ()) -> GatewayEnvelope:
    """Return the application inside its envelope, with the routes of optional parts."""
    app = FastAPI(title="shoal gateway", docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
    for route in ROUTES:
        app.router.routes.append(AsgiRoute(route.path, PlainEndpoint(gateway, route), methods=["POST"]))
    _add_health(app, gateway)
    for add_routes in parts:
        add_routes(app)
    _add_models(app, gateway.services)  # last, because a model id is a path and would match the other routes
    _add_document(app, gateway.services)
    _add_error_shapes(app)
    return GatewayEnvelope(app, gateway.services)


def _add_health(app: FastAPI, gateway: Gateway) -> None:
    @app.head("/health", include_in_schema=False)
    @app.get("/health")  # vLLM's path, for tools that know only that
    @app.head("/healthz", include_in_schema=False)
    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        """Report that the process is alive and its event loop runs."""
        return {"status": "ok"}

    @app.head("/readyz", include_in_schema=False)
    @app.get("/readyz")
    async def readyz() -> JSONResponse:
        """Report 200 if the gateway is ready, else 503 and the reason, like a drain, no snapshot or no ready replica.

        A fleet with pools that may scale to zero needs no ready replica. The answer names the snapshot.
        """
        reason = gateway.not_ready_reason()
        content: dict[str, Any] = {"status": "ready"} if reason is None else {"status": "not ready", "reason": reason}
        catalogue = gateway.services.state.catalogue
        if catalogue is not None:
            content |= {"snapshot_epoch": catalogue.epoch, "revision": catalogue.snapshot.revision}
        return JSONResponse(content, status_code=200 if reason is None else 503)


def _add_models(app: FastAPI, services: Services) -> None:
    listed = RecentListings(services.clock)

    @app.get("/v1/models")
    async def models(request: Request) -> Response:
        catalogue, caller = identify_lookup(services, request)
        page = page_of(request.query_params)
        content = listed.models(catalogue, services.fleet, caller.tenant, page)
        return Response(content, media_type="application/json")

    @app.get("/v1/models/{model:path}")
    async def model(request: Request, model: str) -> Any:
        if not model:  # trailing slash
            return await models(request)
        catalogue, caller = identify_lookup(services, request)
        found = describe_model(catalogue, services.fleet, caller.tenant, model)
        if found is None:
            raise model_not_found(model)
        return found


def _add_document(app: FastAPI, services: Services) -> None:
    """Add the OpenAPI document, readable without a key and built once in a thread at the first request."""
    written: list[bytes] = []

    @app.get(document.PATH, include_in_schema=False)
    async def openapi() -> Response:
        if not written:
            made = await asyncio.to_thread(document.document, app, services.limits)
            written.append(orjson.dumps(made))
        return Response(written[0], media_type="application/json")


def _add_error_shapes(app: FastAPI) -> None:
    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> Response:
        if error.status_code == 404:
            answer = errors.not_found(request.method, request.scope["path"])
        elif error.status_code == 405:
            answer = errors.method_not_allowed(request.method, request.scope["path"])
        else:
            answer = ErrorAnswer(error.status_code, "invalid_request_error", "invalid_request", str(error.detail))
        return _response(request, answer, dict(error.headers or {}))

    @app.exception_handler(Exception)
    async def failed(request: Request, error: Exception) -> Response:
        """Return the 500 for an unexpected exception. The envelope receives the exception too and logs it."""
        return _response(request, errors.internal_error(), {})

    @app.exception_handler(RequestValidationError)
    async def validation_error(request: Request, error: RequestValidationError) -> Response:
        return _response(request, _misshapen(error), {})

    @app.exception_handler(RequestRejected)
    async def refused(request: Request, error: RequestRejected) -> Response:
        return _response(request, error.answer, {})


def _misshapen(error: RequestValidationError) -> ErrorAnswer:
    """Return the error for the first invalid parameter: `'limit': input should be greater than or equal to 1.`"""
    found = next(iter(error.errors()), None)
    name = str(found["loc"][-1])[:64] if found is not None and found.get("loc") else ""
    if found is None or not name:
        return errors.bad_request("The request does not have the expected shape.").answer
    said = str(found["msg"])[:200]
    return errors.bad_request(f"'{name}': {said[:1].lower()}{said[1:]}.", param=name).answer


def _response(request: Request, answer: ErrorAnswer, extra: dict[str, str]) -> Response:
    body = dialect_of(request.scope["path"]).error_body(answer, request.state.request_id)
    response = Response(body, status_code=answer.status, headers=extra)
    for name, value in replies.error_headers(request.state.request_id, answer):
        response.headers[name.decode()] = value.decode()
    return response
