"""`/regions/v1`: facts and content for registries of other regions. Read-only; requires the regions' token.

changes     models and keys that writes have changed, including deleted ones; a long poll
chunks, manifests     content by its sha256, from this region's store
used        amounts of tenants' limits that this region's bus granted

`/internal/v1/regions` shows the operator the other regions' state, with adopted and held facts.
"""

import asyncio
from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Depends, Path, Query, Request, Response

from functions.artifacts.locations import CHUNKS_PREFIX, MANIFESTS_PREFIX
from functions.artifacts.manifest import CHUNK_MAX_BYTES, MANIFEST_MAX_BYTES
from functions.fleet.bus import BusUnavailable
from functions.registry.conventions import require_token, unless_client_leaves
from functions.registry.errors import ApiError
from functions.registry.internal_routes import After, ChangesFollower, WaitSeconds
from functions.registry.principal import Principal
from functions.registry.regions.parts import RegionParts
from functions.registry.services import RegistryServices
from functions.registry.sql import region_facts

AT_ONCE = 4  # concurrent reads of content; each holds a chunk, usually 8 MiB
_KINDS = {"chunks": (CHUNKS_PREFIX, CHUNK_MAX_BYTES), "manifests": (MANIFESTS_PREFIX, MANIFEST_MAX_BYTES)}

Kind = Literal["chunks", "manifests"]
Sha256 = Annotated[str, Path(pattern=r"^[0-9a-f]{64}$")]
AfterMoment = Annotated[str, Query(pattern=r"^[0-9]{1,20}$", description="`upto` of the previous answer; 0: none.")]


def regions_routes(services: RegistryServices, parts: RegionParts) -> APIRouter:
    router = APIRouter()
    of_regions = [Depends(require_token(parts.token))]
    regions, bus, objects = parts.follower, parts.bus, parts.objects
    follower = ChangesFollower(services)
    reading = asyncio.Semaphore(AT_ONCE)
    database = services.database

    @router.get("/regions/v1/changes", dependencies=of_regions)
    async def changes(request: Request, after: After = 0, wait_s: WaitSeconds = 0.0) -> Response:
        """Models and keys of the API as they are after writes above `after` that changed them, as soon as there are
        any."""
        if await unless_client_leaves(request, follower.next_changes(after, wait_s)) is None:
            return Response(status_code=204)
        read = lambda connection: region_facts.page_after(connection, regions.region, after)  # noqa: E731
        page = await database.run(lambda: database.read(read), for_operator=True)
        return Response(msgspec.json.encode(page), media_type="application/json")

    @router.get("/regions/v1/used", dependencies=of_regions)
    async def used(after: AfterMoment = "0") -> Response:
        """Amounts that this region granted of tenants' limits, for accounts that changed since `after`."""
        try:
            return Response(msgspec.json.encode(await bus.read(after)), media_type="application/json")
        except BusUnavailable as error:
            raise ApiError(503, "bus_unavailable", str(error), headers={"retry-after": "5"}) from error

    @router.get("/regions/v1/{kind}/{sha256}", dependencies=of_regions)
    async def content(kind: Kind, sha256: Sha256) -> Response:
        """A manifest or a chunk of this region's store."""
        if objects is None:
            raise ApiError(404, "artifact_not_found", "this region has no store")
        prefix, max_bytes = _KINDS[kind]
        async with reading:
            body = await asyncio.to_thread(objects.read_small, prefix + sha256, max_bytes)
        return Response(body, media_type="application/octet-stream")

    @router.get("/internal/v1/regions")
    async def seen(who: Annotated[Principal, Depends(services.authenticator.operator)]) -> dict[str, Any]:
        """State of the other regions: connection, adopted facts, held facts."""
        return {"region": regions.region, "others": regions.described()}

    return router
