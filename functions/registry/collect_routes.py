"""`POST /internal/v1/gc`: one pass of the garbage collector now, or what it would find."""

import dataclasses
from typing import Annotated, Any

from fastapi import APIRouter, Depends

from functions.registry.bodies import JsonBody, body_of, describes
from functions.registry.collecting import Collecting, NotNow
from functions.registry.errors import ApiError
from functions.registry.principal import Doorman, Principal


class Collect(JsonBody, frozen=True):
    dry_run: bool = False  # only count


def collect_routes(collecting: Collecting | None, doorman: Doorman) -> APIRouter:
    router = APIRouter()

    @router.post("/internal/v1/gc", openapi_extra=describes(Collect, required=False))
    async def collect(
        who: Annotated[Principal, Depends(doorman.operator)],
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
