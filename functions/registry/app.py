"""The registry's HTTP application: routes and what surrounds them. No sockets, no files, no globals.

GET  /healthz /readyz /metrics /openapi.json       for everyone who can reach it
GET|HEAD|PUT /v1/snapshot, GET /v1/models[/…], GET /v1/fleet   for holders of the internal token
"""

import time
from collections.abc import Callable
from typing import Any

from fastapi import Depends, FastAPI, Response
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.types import ASGIApp

from functions.registry import errors
from functions.registry.envelope import Envelope
from functions.registry.errors import ApiError
from functions.registry.fleet_routes import fleet_routes
from functions.registry.fleet_watch import FleetWatch
from functions.registry.guards import require_token
from functions.registry.metrics import Metrics
from functions.registry.model_routes import model_routes
from functions.registry.snapshot_routes import snapshot_routes
from functions.registry.store import SnapshotStore


def make_app(
    store: SnapshotStore, fleet: FleetWatch, token: str, wall_clock: Callable[[], float] = time.time
) -> ASGIApp:
    metrics = Metrics()
    app = FastAPI(title="shoal registry", docs_url=None, redoc_url=None)
    errors.install(app)
    internal = [Depends(require_token(token))]
    for router in (snapshot_routes(store, metrics), model_routes(store), fleet_routes(fleet)):
        app.include_router(router, dependencies=internal)

    @app.get("/healthz")
    async def alive() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/readyz")
    async def ready() -> dict[str, Any]:
        """Ready without a snapshot too: somebody must be able to bring the first one."""
        if store.closing:
            raise ApiError(503, "closing", "the registry is shutting down")
        return {"status": "ready", "snapshot_epoch": store.epoch, "bus_connected": fleet.bus_connected}

    @app.get("/metrics", response_class=Response)
    async def exposition() -> Response:
        return Response(metrics.exposition(store, fleet, wall_clock()), media_type=CONTENT_TYPE_LATEST)

    return Envelope(app, metrics)
