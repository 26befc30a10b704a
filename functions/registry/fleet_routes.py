"""`/v1/fleet`: every replica's last heartbeat; `/v1/fleet/pools`: load reports that the controller sizes pools by.

GET /v1/fleet          whole heartbeats, for people and for the controller's rollouts
GET /v1/fleet/pools    sums of what gateways tell, and of each replica what a decision on sizes needs
PUT /v1/fleet/pools    desired replicas: shown as shoal_autoscaler_desired_replicas until it is a minute old
GET /v1/fleet/zones    the zone of one node, or of the node that one gateway's pod is on
PUT /v1/fleet/zones    the controller's table of them
PUT /v1/fleet/verdicts what the controller says of slow and faulty replicas, and of nodes that are not ready
"""

import dataclasses
from typing import Annotated, Any, TypeVar

import msgspec
from fastapi import APIRouter, Depends, Query, Request, Response

from functions.api.ids import NAME_PATTERN
from functions.fleet.pool_board import REPORT_PATH, DesiredPools, PoolReport, replica_report
from functions.fleet.role_credentials import RoleCredentials
from functions.fleet.verdicts import VERDICTS_MAX_BYTES, VERDICTS_PATH, Verdicts
from functions.fleet.zones import ZONES_MAX_BYTES, ZONES_PATH, ZoneTable
from functions.registry.collecting import Collecting, NotNow
from functions.registry.conventions import (
    AfterNumber,
    JsonBody,
    Limit,
    body_of,
    describes,
    page_of,
    read_body,
    require_role,
)
from functions.registry.errors import ApiError
from functions.registry.fleet_watch import FleetWatch, ReplicaSighting
from functions.registry.principal import Authenticator, Principal
from functions.registry.services import RegistryServices
from functions.registry.sql import audit

_DESIRED_MAX_BYTES = 2 * 1024 * 1024

Body = TypeVar("Body")
NodeName = Annotated[str, Query(max_length=253, description="The node that the caller is on.")]
PodName = Annotated[str, Query(max_length=253, description="The caller's pod, where it does not know its node.")]


def fleet_routes(fleet: FleetWatch, credentials: RoleCredentials) -> APIRouter:
    router = APIRouter()
    controller = [Depends(require_role(credentials, "publish"))]
    members = [Depends(require_role(credentials, "follow", "agent"))]

    @router.get("/v1/fleet", dependencies=controller)
    async def replicas() -> dict[str, Any]:
        """Replicas by id; `age_s` is the time since the last heartbeat. Without heartbeats the last view stays."""
        return {
            "object": "list",
            "bus_connected": fleet.bus_connected,
            "replicas": [_described(seen) for seen in fleet.replicas()],
            "verdicts": msgspec.to_builtins(fleet.verdicts),
        }

    @router.get(REPORT_PATH, dependencies=controller)
    async def pools() -> Response:
        """Load of each pool and replica, as gateways report it; a pool without a report of late is left out."""
        replicas = tuple(replica_report(seen.heartbeat, seen.age_s, seen.suspected) for seen in fleet.replicas())
        report = PoolReport(fleet.bus_connected, dict(fleet.pools.sums()), replicas, fleet.pools.needs())
        return Response(msgspec.json.encode(report), media_type="application/json")

    @router.put(REPORT_PATH, status_code=204, dependencies=controller)
    async def desired(request: Request) -> Response:
        """Desired replicas of each pool, for metrics and the console."""
        fleet.pools.set_desired((await _decoded(request, DesiredPools, _DESIRED_MAX_BYTES)).pools)
        return Response(status_code=204)

    @router.get(ZONES_PATH, dependencies=members)
    async def zone(node: NodeName = "", pod: PodName = "") -> dict[str, str]:
        """In which zone the caller is; empty where that is not known, or not yet."""
        return {"zone": fleet.zones.zone_of(node, pod)}

    @router.put(ZONES_PATH, status_code=204, dependencies=controller)
    async def zones(request: Request) -> Response:
        """Every node's zone, and the nodes of gateways' pods; in place of what was told before."""
        fleet.zones = await _decoded(request, ZoneTable, ZONES_MAX_BYTES)
        return Response(status_code=204)

    @router.put(VERDICTS_PATH, status_code=204, dependencies=controller)
    async def verdicts(request: Request) -> Response:
        """Slow replicas, faulty accelerators, nodes that are not ready; in place of what was told before."""
        await fleet.judged(await _decoded(request, Verdicts, VERDICTS_MAX_BYTES))
        return Response(status_code=204)

    return router


async def _decoded(request: Request, kind: type[Body], max_bytes: int) -> Body:
    body = b"".join(await read_body(request, max_bytes))
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ApiError(400, "invalid_body", f"the body cannot be used: {error}") from error


def _described(seen: ReplicaSighting) -> dict[str, Any]:
    told = {**msgspec.structs.asdict(seen.heartbeat), "age_s": round(seen.age_s, 3), "suspected": seen.suspected}
    return {**told, "pace": msgspec.to_builtins(seen.heartbeat.pace)}


# `/v1/audit`: who changed what, the last entry first, and whether the chain is sound. The operator's.


_DEFAULT_LIMIT = 100

Tenant = Annotated[str | None, Query(pattern=rf"^{NAME_PATTERN}$", description="Only what concerns this tenant.")]


def audit_routes(services: RegistryServices) -> APIRouter:
    router = APIRouter()
    operator, database = services.authenticator.operator, services.database

    @router.get("/v1/audit")
    async def entries(
        who: Annotated[Principal, Depends(operator)],
        limit: Limit = _DEFAULT_LIMIT,
        after: AfterNumber = None,
        tenant: Tenant = None,
    ) -> dict[str, Any]:
        """Entries, going back in time; each with the hash that chains it to the one before."""
        found = await database.run(lambda: database.read(lambda c: audit.page(c, after, limit + 1, tenant)))
        return page_of(found[:limit], found[limit - 1]["seq"] if len(found) > limit else None)

    @router.get("/v1/audit/verify")
    async def verify(who: Annotated[Principal, Depends(operator)]) -> dict[str, Any]:
        """Walk the whole chain. Keep `head` elsewhere: it proves later that nothing before it was changed."""
        found = await database.run(lambda: database.read(audit.verify))
        return {"object": "audit.verification", "sound": found.broken_at is None, **dataclasses.asdict(found)}

    return router


# `POST /internal/v1/gc`: one pass of the garbage collector now, or what it would find.


class Collect(JsonBody, frozen=True):
    dry_run: bool = False  # only count


def collect_routes(collecting: Collecting | None, authenticator: Authenticator) -> APIRouter:
    router = APIRouter()

    @router.post("/internal/v1/gc", openapi_extra=describes(Collect, required=False))
    async def collect(
        who: Annotated[Principal, Depends(authenticator.operator)],
        body: Annotated[Collect, Depends(body_of(Collect))],
    ) -> dict[str, Any]:
        """Delete what nothing has named for longer than the grace. 409 where that cannot be known now."""
        if collecting is None:
            raise ApiError(503, "no_store", "this registry has no object store configured: there is nothing to collect")
        try:
            done = await collecting.once(dry_run=body.dry_run)
        except NotNow as error:
            raise ApiError(409, "not_now", f"nothing was deleted: {error}") from error
        return {"object": "gc", "dry_run": body.dry_run, **dataclasses.asdict(done)}

    return router
