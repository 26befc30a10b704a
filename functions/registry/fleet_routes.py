"""`/v1/fleet`: the last heartbeat of each replica. `/v1/fleet/pools`: load reports from which the controller sizes
pools.

GET /v1/fleet          whole heartbeats, for people and for the controller's rollouts
GET /v1/fleet/pools    sums of the gateways' reports, and for each replica what a sizing decision needs
PUT /v1/fleet/pools    desired replicas, exported as shoal_autoscaler_desired_replicas for one minute
GET /v1/fleet/zones    zone of a node, or of the node that runs a gateway's pod
PUT /v1/fleet/zones    the controller's table of zones
PUT /v1/fleet/verdicts the controller's findings: slow and faulty replicas, and nodes that are not ready
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
from functions.registry.collecting import GarbageCollector, NotNow
from functions.registry.conventions import (
    AfterNumber,
    JsonBody,
    Limit,
    body_of,
    body_schema,
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
NodeName = Annotated[str, Query(max_length=253, description="Node of the caller.")]
PodName = Annotated[str, Query(max_length=253, description="Pod of the caller, if it does not know its node.")]


def fleet_routes(fleet: FleetWatch, credentials: RoleCredentials) -> APIRouter:
    router = APIRouter()
    controller = [Depends(require_role(credentials, "publish"))]
    members = [Depends(require_role(credentials, "follow", "agent"))]

    @router.get("/v1/fleet", dependencies=controller)
    async def replicas() -> dict[str, Any]:
        """Replicas by id, and the controller's verdicts; `age_s` is the seconds since the last heartbeat. Silent
        replicas are left out, unless most of the fleet is silent: then the last view stays."""
        return {
            "object": "list",
            "bus_connected": fleet.bus_connected,
            "replicas": [_described(seen) for seen in fleet.replicas()],
            "verdicts": msgspec.to_builtins(fleet.verdicts),
        }

    @router.get(REPORT_PATH, dependencies=controller)
    async def pools() -> Response:
        """Load of each pool and replica as gateways report it. A pool without a recent report is left out."""
        replicas = tuple(replica_report(seen.heartbeat, seen.age_s, seen.suspected) for seen in fleet.replicas())
        report = PoolReport(fleet.bus_connected, dict(fleet.pools.sums()), replicas, fleet.pools.needs())
        return Response(msgspec.json.encode(report), media_type="application/json")

    @router.put(REPORT_PATH, status_code=204, dependencies=controller)
    async def desired(request: Request) -> Response:
        """Replace the desired replicas of all pools, which metrics and the console show."""
        fleet.pools.set_desired((await _decoded(request, DesiredPools, _DESIRED_MAX_BYTES)).pools)
        return Response(status_code=204)

    @router.get(ZONES_PATH, dependencies=members)
    async def zone(node: NodeName = "", pod: PodName = "") -> dict[str, str]:
        """The zone of the node, or of the node of the gateway pod, that the query names; empty if it is unknown."""
        return {"zone": fleet.zones.zone_of(node, pod)}

    @router.put(ZONES_PATH, status_code=204, dependencies=controller)
    async def zones(request: Request) -> Response:
        """Replace the table of nodes' zones and of the nodes of gateway pods."""
        fleet.zones = await _decoded(request, ZoneTable, ZONES_MAX_BYTES)
        return Response(status_code=204)

    @router.put(VERDICTS_PATH, status_code=204, dependencies=controller)
    async def verdicts(request: Request) -> Response:
        """Replace the list of slow replicas, faulty accelerators and nodes that are not ready."""
        await fleet.set_verdicts(await _decoded(request, Verdicts, VERDICTS_MAX_BYTES))
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


# `/v1/audit`: the log of changes, newest first, and the verification of its hash chain. Operators only.


_DEFAULT_LIMIT = 100

Tenant = Annotated[str | None, Query(pattern=rf"^{NAME_PATTERN}$", description="Only entries about this tenant.")]


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
        """Entries of the audit log, newest first; each with the hash that chains it to the entry before."""
        found = await database.run(lambda: database.read(lambda c: audit.page(c, after, limit + 1, tenant)))
        return page_of(found[:limit], found[limit - 1]["seq"] if len(found) > limit else None)

    @router.get("/v1/audit/verify")
    async def verify(who: Annotated[Principal, Depends(operator)]) -> dict[str, Any]:
        """Verify the whole chain. Store `head` elsewhere: it later proves that no entry before it was changed."""
        found = await database.run(lambda: database.read(audit.verify))
        return {"object": "audit.verification", "sound": found.broken_at is None, **dataclasses.asdict(found)}

    return router


# `POST /internal/v1/gc`: one pass of the garbage collector, or with `dry_run` only its counts.


class Collect(JsonBody, frozen=True):
    dry_run: bool = False  # count without deleting


def collect_routes(collecting: GarbageCollector | None, authenticator: Authenticator) -> APIRouter:
    router = APIRouter()

    @router.post("/internal/v1/gc", openapi_extra=body_schema(Collect, required=False))
    async def collect(
        who: Annotated[Principal, Depends(authenticator.operator)],
        body: Annotated[Collect, Depends(body_of(Collect))],
    ) -> dict[str, Any]:
        """Delete artifacts that nothing has named for longer than the grace period; `dry_run` only counts them. 409 if
        no pass can run now."""
        if collecting is None:
            raise ApiError(503, "no_store", "this registry has no object store configured: there is nothing to collect")
        try:
            done = await collecting.collect_once(dry_run=body.dry_run)
        except NotNow as error:
            raise ApiError(409, "not_now", f"nothing was deleted: {error}") from error
        return {"object": "gc", "dry_run": body.dry_run, **dataclasses.asdict(done)}

    return router
