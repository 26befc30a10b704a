"""The registry's HTTP application: routes and what surrounds them. No sockets, no files, no globals.

GET  /healthz /readyz /metrics /openapi.json /console          for everyone who can reach it
GET|HEAD|PUT /v1/snapshot, GET /v1/fleet, /internal/v1/…       for holders of the internal token
/v1/models /v1/rollouts /v1/artifacts                          for tenants, each its own, and for the operator
/v1/tenants/…/keys /v1/audit                                   for the operator

The snapshot's routes touch no database: what serves depends on nothing that only changes what is served.
"""

import time
from collections.abc import Callable
from typing import Any

from fastapi import Depends, FastAPI, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.types import ASGIApp

from functions.registry import document, errors, refusals
from functions.registry.artifact_routes import artifact_routes
from functions.registry.audit_routes import audit_routes
from functions.registry.collect_routes import collect_routes
from functions.registry.collecting import Collecting
from functions.registry.console import console_routes
from functions.registry.envelope import Envelope
from functions.registry.errors import ApiError
from functions.registry.fleet_routes import fleet_routes
from functions.registry.fleet_watch import FleetWatch
from functions.registry.guards import require_token
from functions.registry.internal_routes import internal_routes
from functions.registry.key_routes import key_routes
from functions.registry.metrics import Metrics
from functions.registry.model_routes import model_routes
from functions.registry.principal import Doorman
from functions.registry.rollout_routes import rollout_routes
from functions.registry.rollout_stages import active_stages
from functions.registry.snapshot_routes import snapshot_routes
from functions.registry.store import SnapshotStore
from functions.registry.tracker import Tracker
from functions.registry.tracker_routes import tracker_routes
from functions.registry.truth import Truth
from functions.registry.version_routes import version_routes


def make_app(
    store: SnapshotStore,
    fleet: FleetWatch,
    token: str,
    wall_clock: Callable[[], float] = time.time,
    *,
    truth: Truth | None = None,
    collecting: Collecting | None = None,
) -> ASGIApp:
    """Without a `truth` there are the snapshot, the fleet and what was published of the models, read-only."""
    metrics = Metrics()
    app = FastAPI(title="shoal registry", docs_url=None, redoc_url=None, openapi_url=None)
    errors.install(app)
    refusals.install(app)
    document.install(app, require_token(token))
    internal = [Depends(require_token(token))]
    for router in (snapshot_routes(store, metrics), fleet_routes(fleet), tracker_routes(Tracker())):
        app.include_router(router, dependencies=internal)
    doorman = truth.doorman if truth is not None else Doorman(store, token, None, wall_clock)
    app.include_router(model_routes(store, doorman, truth.database if truth is not None else None))
    if truth is not None:
        for routes in (version_routes, artifact_routes, rollout_routes, key_routes, audit_routes, internal_routes):
            app.include_router(routes(truth))
        app.include_router(collect_routes(collecting, doorman))
        app.include_router(console_routes(truth, fleet, wall_clock))

    @app.get("/healthz")
    async def alive() -> dict[str, str]:
        """The process lives."""
        return {"status": "ok"}

    @app.get("/readyz")
    async def ready() -> dict[str, Any]:
        """Ready without a snapshot too: somebody must be able to bring the first one. Without a database as well."""
        if store.closing:
            raise ApiError(503, "closing", "the registry is shutting down")
        database = {"database_ready": truth.database.ready} if truth is not None else {}
        about = {"snapshot_epoch": store.epoch, "bus_connected": fleet.bus_connected}
        return {"status": "ready", **about, **database}

    @app.get("/metrics", response_class=Response)
    async def exposition(request: Request) -> Response:
        """With the internal token also `shoal_rollout_stage{model}`: models' names are for nobody else."""
        stages = await active_stages(truth, request, require_token(token)) if truth is not None else {}
        return Response(metrics.exposition(store, fleet, wall_clock(), stages), media_type=CONTENT_TYPE_LATEST)

    return Envelope(app, metrics)
