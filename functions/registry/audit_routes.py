"""`/v1/audit`: who changed what, the last entry first, and whether the chain is sound. The operator's."""

import dataclasses
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query

from functions.api.ids import NAME_PATTERN
from functions.registry.pages import AfterNumber, Limit, page_of
from functions.registry.principal import Principal
from functions.registry.sql import audit
from functions.registry.truth import Truth

_DEFAULT_LIMIT = 100

Tenant = Annotated[str | None, Query(pattern=rf"^{NAME_PATTERN}$", description="Only what concerns this tenant.")]


def audit_routes(truth: Truth) -> APIRouter:
    router = APIRouter()
    operator, database = truth.doorman.operator, truth.database

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
