"""Routes for the console and other clients with the operator's token.

    GET  /v1/fleet/series           a pool's figures over a window, from Prometheus or the registry's samples
    GET  /v1/alerts                 pending and firing alerts
    GET  /v1/tenants                the busiest tenants, and their use as shares of their limits
    GET  /v1/traces                 a search over requests, newest or slowest first
    GET  /v1/traces/{request_id}    one request: the parts of its time, and why its replica was chosen
    GET  /v1/drills                 reports of drills
    GET  /v1/branch                 the controller's source, the applied revision, and rejected revisions with reasons
    PUT  /v1/branch                 the controller's report on that

If a data source cannot be reached, the route answers 503 with the reason; `series` falls back to samples.
"""

import asyncio
import functools
import time
from collections.abc import Callable
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Depends, Path, Query, Request, Response

from functions.api.ids import MODEL_ID_PATTERN, NAME_PATTERN
from functions.fleet.branch_report import BRANCH_MAX_BYTES, BRANCH_PATH, BranchReport
from functions.registry.console import tenants
from functions.registry.console.prometheus import PrometheusAway, shown_alerts
from functions.registry.console.series import Window
from functions.registry.console.sources import ConsoleSources, drill_reports
from functions.registry.conventions import read_body
from functions.registry.errors import ApiError
from functions.registry.services import RegistryServices
from functions.telemetry.store.questions import Search

_ID = r"^[!-~]{1,256}$"
_MODEL = rf"^{MODEL_ID_PATTERN}(@{NAME_PATTERN})?$"
_TRACES_MAX = 200
_SINCE_MAX_S = 400 * 86_400.0
_NO_PROMETHEUS = "no Prometheus is configured: set SHOAL_REGISTRY_PROMETHEUS_URL to the one that evaluates the alerts"

OfTenant = Annotated[str | None, Query(pattern=rf"^{NAME_PATTERN}$", description="Only this tenant's requests.")]
OfModel = Annotated[str | None, Query(pattern=_MODEL, max_length=200, description="A model, or one version of it.")]
OfPool = Annotated[str | None, Query(pattern=rf"^{NAME_PATTERN}$", description="Only requests of this pool.")]
OfReplica = Annotated[str | None, Query(pattern=_ID, description="Only requests that this replica answered.")]
AgoS = Annotated[float, Query(gt=0, le=_SINCE_MAX_S, description="Length of the window before `until`, in seconds.")]
UntilUnixS = Annotated[
    float | None, Query(gt=0, le=1e10, description="End of the window in Unix seconds; default: now.")
]
OverMs = Annotated[float | None, Query(ge=0, le=1e9, description="Only requests with at least this total time.")]
Search_ = Annotated[str, Query(max_length=130, description="A part of a name.")]


def observed_routes(
    services: RegistryServices, sources: ConsoleSources, wall_clock: Callable[[], float] = time.time
) -> APIRouter:
    router = APIRouter()
    operator = [Depends(services.authenticator.operator)]

    @router.get("/v1/fleet/series", dependencies=operator)
    async def series(window: Window = "1h") -> dict[str, Any]:
        """Latencies, queue, KV cache and tokens per second of each pool, all at the same times."""
        return await sources.series.answer_for(window)

    @router.get("/v1/alerts", dependencies=operator)
    async def firing() -> dict[str, Any]:
        """Pending and firing alerts with a failure mode; those that page come first."""
        if sources.prometheus is None:
            raise ApiError(503, "no_prometheus", _NO_PROMETHEUS)
        try:
            return shown_alerts(await sources.prometheus.alerts())
        except PrometheusAway as error:
            raise ApiError(503, "prometheus_away", str(error)) from error

    @router.get("/v1/tenants", dependencies=operator)
    async def used(
        search: Search_ = "", limit: Annotated[int, Query(ge=1, le=tenants.SHOWN_MAX)] = 50
    ) -> dict[str, Any]:
        """Tenants with their limits and their use of them, the busiest first."""
        database, now_unix_s = services.database, wall_clock()
        read = functools.partial(database.read, lambda c: tenants.read_usage(c, now_unix_s))
        newest = await database.run(read, for_operator=True)
        current = services.declared.store.current
        snapshot = current.snapshot if current is not None else None
        return tenants.described_tenants(snapshot, newest, sources.recent_use.used_since(newest), search, limit)

    @router.get("/v1/drills", dependencies=operator)
    async def drilled() -> dict[str, Any]:
        """Reports that `shoal drill` wrote, newest first; none on a cluster."""
        return await asyncio.to_thread(drill_reports, sources.drills_dir)

    return router


def trace_routes(
    services: RegistryServices, sources: ConsoleSources, wall_clock: Callable[[], float] = time.time
) -> APIRouter:
    router = APIRouter()
    operator = [Depends(services.authenticator.operator)]

    @router.get("/v1/traces", dependencies=operator)
    async def search(
        *,
        ago_s: AgoS = 3600.0,
        until: UntilUnixS = None,
        tenant: OfTenant = None,
        model: OfModel = None,
        pool: OfPool = None,
        replica: OfReplica = None,
        errors: Annotated[bool, Query(description="Only requests with a status of 400 or above.")] = False,
        slowest: Annotated[bool, Query(description="Slowest requests first; default: newest first.")] = False,
        over_ms: OverMs = None,
        limit: Annotated[int, Query(ge=1, le=_TRACES_MAX)] = 50,
    ) -> dict[str, Any]:
        """Requests of all gateways. A row appears about a second after the end of its request."""
        before = until if until is not None else wall_clock()
        wanted = Search(
            since_s=before - ago_s, until_s=until, tenant=tenant, model=model, pool=pool, replica=replica,
            errors=errors, over_ms=over_ms, slowest_first=slowest, limit=limit + 1,
        )  # fmt: skip
        found = await sources.traces.search(wanted)
        return {"object": "list", "data": found[:limit], "has_more": len(found) > limit}

    @router.get("/v1/traces/{request_id}", dependencies=operator)
    async def trace(request_id: Annotated[str, Path(pattern=_ID)]) -> dict[str, Any]:
        """The newest row of a request, with the parts of its time."""
        found = await sources.traces.find(request_id)
        if found is None:
            message = (
                f"no trace of {request_id[:160]!r}: use the x-request-id of the answer. A trace appears about a second "
                "after the request's end; a request rejected before its model was known has none"
            )
            raise ApiError(404, "trace_not_found", message)
        return found

    return router


def branch_routes(
    services: RegistryServices, sources: ConsoleSources, wall_clock: Callable[[], float] = time.time
) -> APIRouter:
    router = APIRouter()

    @router.get(BRANCH_PATH, dependencies=[Depends(services.authenticator.operator)])
    async def branch() -> dict[str, Any]:
        """The controller's last report on the revisions that it follows; `report` is null before the first one."""
        board = sources.branch
        told = board.report is not None
        return {
            "object": "branch",
            "age_s": max(0.0, wall_clock() - board.told_unix_s) if told else None,
            "report": msgspec.to_builtins(board.report),
        }

    @router.put(BRANCH_PATH, status_code=204, dependencies=[Depends(services.authenticator.controller)])
    async def publish_branch(request: Request) -> Response:
        """Replace the controller's report on the revisions that it follows."""
        body = b"".join(await read_body(request, BRANCH_MAX_BYTES))
        try:
            report = msgspec.json.decode(body, type=BranchReport)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ApiError(400, "invalid_body", f"the body cannot be used: {error}") from error
        sources.branch.set_report(report, wall_clock())
        return Response(status_code=204)

    return router
