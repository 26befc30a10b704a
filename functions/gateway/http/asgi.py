"""The FastAPI application: every route that is not hot, and the hot ones for connections off the fast lane."""

from collections.abc import Callable, Iterable
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.routing import Route as AsgiRoute

from functions.gateway import errors
from functions.gateway.errors import ErrorAnswer, Refused, model_not_found
from functions.gateway.gateway import Gateway
from functions.gateway.http.envelope import Envelope
from functions.gateway.http.plain import PlainEndpoint
from functions.gateway.intake.callers import identify_lookup
from functions.gateway.intake.listed_lately import ListedLately
from functions.gateway.intake.listing import describe_model
from functions.gateway.intake.routes import ROUTES, dialect_of
from functions.gateway.request import replies as answers
from functions.gateway.services import Services

RouteProvider = Callable[[FastAPI], None]  # adds the routes of an optional part


def make_app(gateway: Gateway, parts: Iterable[RouteProvider] = ()) -> Envelope:
    """The application, inside its envelope, with the routes of optional parts."""
    app = FastAPI(title="shoal gateway", docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
    for route in ROUTES:
        app.router.routes.append(AsgiRoute(route.path, PlainEndpoint(gateway, route), methods=["POST"]))
    _add_health(app, gateway)
    _add_models(app, gateway.services)
    for add_routes in parts:
        add_routes(app)
    _add_error_shapes(app)
    return Envelope(app, gateway.services)


def _add_health(app: FastAPI, gateway: Gateway) -> None:
    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        """The process lives and its loop turns."""
        return {"status": "ok"}

    @app.get("/readyz")
    async def readyz() -> JSONResponse:
        """Requests can be answered: there is a snapshot (the answer names it) and a ready replica, and no drain."""
        reason = gateway.not_ready_reason()
        content: dict[str, Any] = {"status": "ready"} if reason is None else {"status": "not ready", "reason": reason}
        catalogue = gateway.services.state.catalogue
        if catalogue is not None:
            content |= {"snapshot_epoch": catalogue.epoch, "revision": catalogue.snapshot.revision}
        return JSONResponse(content, status_code=200 if reason is None else 503)


def _add_models(app: FastAPI, services: Services) -> None:
    listed = ListedLately(services.clock)

    @app.get("/v1/models")
    async def models(request: Request) -> Response:
        catalogue, caller = identify_lookup(services, request)
        content = listed.models(catalogue, services.fleet, caller.tenant)
        return Response(content, media_type="application/json")

    @app.get("/v1/models/{model:path}")
    async def model(request: Request, model: str) -> dict[str, Any]:
        catalogue, caller = identify_lookup(services, request)
        found = describe_model(catalogue, services.fleet, caller.tenant, model)
        if found is None:
            raise model_not_found(model)
        return found


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
        """Our shape here; the exception goes on to the envelope, which logs it."""
        return _response(request, errors.internal_error(), {})

    @app.exception_handler(RequestValidationError)
    async def validation_error(request: Request, error: RequestValidationError) -> Response:
        return _response(request, errors.bad_request("The request does not have the expected shape.").answer, {})

    @app.exception_handler(Refused)
    async def refused(request: Request, error: Refused) -> Response:
        return _response(request, error.answer, {})


def _response(request: Request, answer: ErrorAnswer, extra: dict[str, str]) -> Response:
    body = dialect_of(request.scope["path"]).error_body(answer, request.state.request_id)
    response = Response(body, status_code=answer.status, headers=extra)
    for name, value in answers.error_headers(request.state.request_id, answer):
        response.headers[name.decode()] = value.decode()
    return response
