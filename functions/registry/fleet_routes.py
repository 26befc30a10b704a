"""`/v1/fleet`: every replica as it last spoke; `/v1/fleet/pools`: what the controller decides on pools' sizes by.

GET /v1/fleet          whole beats, for people and for the controller's rollouts
GET /v1/fleet/pools    sums of what gateways tell, and of each replica what a decision on sizes needs
PUT /v1/fleet/pools    what the controller wants: shown as shoal_autoscaler_desired_replicas until it is a minute old
"""

from typing import Any

import msgspec
from fastapi import APIRouter, Request, Response

from functions.fleet.pool_report import REPORT_PATH, DesiredPools, PoolReport, replica_report
from functions.registry.errors import ApiError
from functions.registry.fleet_watch import FleetWatch, Seen
from functions.registry.guards import read_body

_DESIRED_MAX_BYTES = 2 * 1024 * 1024


def fleet_routes(fleet: FleetWatch) -> APIRouter:
    router = APIRouter()

    @router.get("/v1/fleet")
    async def replicas() -> dict[str, Any]:
        """Replicas by id; `age_s` is the time since the last beat. Without the bus the last view ages out."""
        return {
            "object": "list",
            "bus_connected": fleet.bus_connected,
            "replicas": [_described(seen) for seen in fleet.replicas()],
        }

    @router.get(REPORT_PATH)
    async def pools() -> Response:
        """Load of each pool and replica, as gateways report it; a pool without a report of late is left out."""
        replicas = tuple(replica_report(seen.heartbeat, seen.age_s) for seen in fleet.replicas())
        report = PoolReport(fleet.bus_connected, dict(fleet.pools.sums()), replicas)
        return Response(msgspec.json.encode(report), media_type="application/json")

    @router.put(REPORT_PATH, status_code=204)
    async def desired(request: Request) -> Response:
        """How many replicas the controller wants of each pool, for metrics and the console."""
        body = b"".join(await read_body(request, _DESIRED_MAX_BYTES))
        try:
            fleet.pools.want(msgspec.json.decode(body, type=DesiredPools).pools)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ApiError(400, "invalid_body", f"the body cannot be used: {error}") from error
        return Response(status_code=204)

    return router


def _described(seen: Seen) -> dict[str, Any]:
    return {**msgspec.structs.asdict(seen.heartbeat), "age_s": round(seen.age_s, 3)}
