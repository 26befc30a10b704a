"""HTTP application of the registry: routes, error handlers and request ids. No sockets, no files, no globals.

GET  /healthz /readyz /metrics /openapi.json /console          without a credential
GET|HEAD|PUT /v1/snapshot, /v1/fleet…, /internal/v1/…          gateways, agents, the controller, by credential
/v1/models /v1/rollouts /v1/artifacts /v1/usage                tenants (their own data only) and the operator
/v1/tenants/…/keys /v1/audit /v1/usage/pools                   the operator
GET /regions/v1/…                                              registries of other regions, with their token

The snapshot's routes use no database, since serving must not depend on the part that only makes changes.
"""

import logging
import re
import time
import uuid
from collections.abc import Callable
from typing import Any

from fastapi import Depends, FastAPI, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from functions.artifacts.errors import (
    ArtifactCorrupt,
    ArtifactError,
    ArtifactMissing,
    ArtifactRefused,
    CacheFailed,
    StoreUnavailable,
    VersionTaken,
)
from functions.fleet.role_credentials import RoleCredentials
from functions.registry import errors
from functions.registry.artifact_routes import artifact_routes
from functions.registry.collecting import GarbageCollector
from functions.registry.console.page import page_routes
from functions.registry.console.routes import branch_routes, observed_routes, trace_routes
from functions.registry.console.sources import ConsoleSources, no_sources
from functions.registry.console.state import state_routes
from functions.registry.conventions import require_role
from functions.registry.errors import ApiError, error_body
from functions.registry.fleet_routes import audit_routes, collect_routes, fleet_routes
from functions.registry.fleet_watch import FleetWatch
from functions.registry.internal_routes import internal_routes, weights_routes
from functions.registry.key_routes import key_routes
from functions.registry.metrics import RegistryMetrics, active_stages
from functions.registry.model_routes import model_routes
from functions.registry.openapi import install_document
from functions.registry.principal import Authenticator
from functions.registry.regions.parts import RegionParts
from functions.registry.regions.routes import regions_routes
from functions.registry.rollout_routes import rollout_routes
from functions.registry.services import RegistryServices
from functions.registry.snapshot_routes import snapshot_routes
from functions.registry.sql.errors import CatalogueRefused, DatabaseUnavailable, Kind
from functions.registry.store import SnapshotStore
from functions.registry.store_watch import StoreWatch
from functions.registry.tracker import Tracker, tracker_routes
from functions.registry.usage_routes import usage_routes
from functions.registry.version_routes import version_routes

# HTTP answers for errors of the catalogue, its database and the artifact store.


_STATUS: dict[Kind, int] = {
    "missing": 404,
    "conflict": 409,
    "outdated": 409,
    "precondition": 412,
    "limit": 409,
    "invalid": 400,
}
_RETRY_AFTER = {"retry-after": "5"}

# Status and code by what the caller has to do: send something else, wait, or choose another name.
_ARTIFACTS: dict[type[ArtifactError], tuple[int, str]] = {
    ArtifactRefused: (422, "artifact_refused"),
    ArtifactCorrupt: (422, "artifact_corrupt"),
    ArtifactMissing: (404, "artifact_not_found"),
    VersionTaken: (409, "version_taken"),
    StoreUnavailable: (503, "store_unavailable"),
    CacheFailed: (503, "staging_failed"),
}


def install_catalogue_errors(app: FastAPI) -> None:
    app.add_exception_handler(CatalogueRefused, _refused)
    app.add_exception_handler(DatabaseUnavailable, _database)
    app.add_exception_handler(ArtifactError, _artifact)


async def _refused(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, CatalogueRefused)
    status = _STATUS[error.kind]
    body = error_body(status, error.code, error.message, error.subject)
    if error.code == "rollout_active":
        body["rollout"] = error.subject  # lets programs watch the active rollout or roll it back
    return JSONResponse(body, status)


async def _database(_: Request, error: Exception) -> JSONResponse:
    return JSONResponse(error_body(503, "database_unavailable", str(error)), 503, headers=_RETRY_AFTER)


async def _artifact(_: Request, error: Exception) -> JSONResponse:
    status, code = next((known for type_, known in _ARTIFACTS.items() if isinstance(error, type_)), (500, "artifact"))
    headers = _RETRY_AFTER if status == 503 else None
    return JSONResponse(error_body(status, code, str(error)), status, headers=headers)


# Request ids, request counts and the log of unexpected errors. Pure ASGI and outermost, so that error answers of the
# framework carry the id as well.


_log = logging.getLogger(__name__)
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
_UNROUTED = "(none)"  # one label for all unknown paths, so that a scanner creates no series


class RequestEnvelope:
    def __init__(self, app: ASGIApp, metrics: RegistryMetrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = _request_id(Headers(scope=scope).get("x-request-id"))
        scope["shoal_request_id"] = request_id  # recorded in the audit log
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
            # the framework has already answered, and raised the error again
            _log.exception("request %s failed", request_id)
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


def make_app(
    store: SnapshotStore,
    fleet: FleetWatch,
    credentials: RoleCredentials,
    wall_clock: Callable[[], float] = time.time,
    *,
    services: RegistryServices | None = None,
    collecting: GarbageCollector | None = None,
    regions: RegionParts | None = None,
    store_watch: StoreWatch | None = None,
    console: ConsoleSources | None = None,
) -> ASGIApp:
    """Make the registry's ASGI app, with request metrics and ids around it. Without `services` it serves only the
    snapshot, the fleet, the tracker and published models."""
    metrics = RegistryMetrics()
    app = FastAPI(title="shoal registry", docs_url=None, redoc_url=None, openapi_url=None)
    errors.install_error_handlers(app)
    install_catalogue_errors(app)
    operators = require_role(credentials)
    install_document(app, operators)
    routers = [
        snapshot_routes(store, metrics, credentials),
        fleet_routes(fleet, credentials),
        tracker_routes(Tracker(), [Depends(require_role(credentials, "agent"))]),
        weights_routes(store, credentials),
    ]
    authenticator = (
        services.authenticator if services is not None else Authenticator(store, credentials, None, wall_clock)
    )
    routers.append(model_routes(store, authenticator, services.database if services is not None else None))
    if services is not None:
        of_services = (version_routes, artifact_routes, rollout_routes, key_routes, usage_routes, audit_routes)
        routers += [routes(services) for routes in (*of_services, internal_routes)]
        sources = console if console is not None else no_sources(wall_clock=wall_clock)
        of_console = (observed_routes, trace_routes, branch_routes)
        routers += [routes(services, sources, wall_clock) for routes in of_console]
        routers += [collect_routes(collecting, authenticator), state_routes(services, fleet, wall_clock), page_routes()]
    if services is not None and regions is not None:
        routers.append(regions_routes(services, regions))
    for router in routers:  # `include_router` would build each route again, and once more at its first request
        app.router.routes.extend(router.routes)

    @app.get("/healthz")
    async def alive() -> dict[str, str]:
        """Report that the process runs."""
        return {"status": "ok"}

    @app.get("/readyz")
    async def ready() -> dict[str, Any]:
        """Report readiness: 503 only while the registry shuts down. Neither a snapshot nor a database is needed, since
        the first snapshot is published to it."""
        if store.closing:
            raise ApiError(503, "closing", "the registry is shutting down")
        database = {"database_ready": services.database.ready} if services is not None else {}
        about = {"snapshot_epoch": store.epoch, "bus_connected": fleet.bus_connected}
        return {"status": "ready", **about, **database}

    @app.get("/metrics", response_class=Response)
    async def exposition(request: Request) -> Response:
        """Metrics for Prometheus; `shoal_rollout_stage{model}` needs the internal token, since it names models."""
        stages = await active_stages(services, request, operators) if services is not None else {}
        others = regions.follower.statuses() if regions is not None else ()
        without_facts = await services.bases_without_facts() if services is not None else []
        if store_watch is not None:
            metrics.set_store_up(store_watch.is_up)
        text = metrics.exposition(store, fleet, wall_clock(), stages, others, without_facts=without_facts)
        return Response(text, media_type=CONTENT_TYPE_LATEST)

    return RequestEnvelope(app, metrics)
