"""`/console`: one page for people who run the fleet. It asks `/console/state` every two seconds and draws the answer.

The page itself is for everyone who can reach the registry and holds nothing: no names, no figures, no token. What it
shows needs the operator's token, which is typed in and stays in the tab (sessionStorage). Names of tenants and models,
and the words of engines, are hostile: the page puts them in as text, never as markup, and its policy lets no script
run but its own.
"""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Response
from sqlalchemy import Connection

from functions.registry.console_state import SHOWN_AUDIT, SHOWN_ENDED, Known, Stored, state_of
from functions.registry.fleet_watch import FleetWatch
from functions.registry.services import RegistryServices
from functions.registry.sql import audit, rollouts
from functions.registry.sql.failures import DatabaseUnavailable
from functions.registry.sql.rollouts import Filter

PAGE_DIR = Path(__file__).parent / "console_page"
SHOWN_ACTIVE = 50
_MEDIA_TYPES = {"console.html": "text/html", "console.css": "text/css", "console.js": "text/javascript"}
_HEADERS: Mapping[str, str] = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}


def console_routes(
    services: RegistryServices, fleet: FleetWatch, wall_clock: Callable[[], float] = time.time
) -> APIRouter:
    router = APIRouter(include_in_schema=False)
    page = {name: (PAGE_DIR / name).read_bytes() for name in _MEDIA_TYPES}

    @router.get("/console")
    async def console() -> Response:
        return _static(page, "console.html")

    @router.get("/console/console.css")
    async def style() -> Response:
        return _static(page, "console.css")

    @router.get("/console/console.js")
    async def script() -> Response:
        return _static(page, "console.js")

    @router.get("/console/state", dependencies=[Depends(services.authenticator.operator)])
    async def state(response: Response, search: Annotated[str, Query(max_length=130)] = "") -> dict[str, Any]:
        response.headers["cache-control"] = "no-store"
        stored = await _stored(services)
        current = services.declared.store.current
        known = Known(
            snapshot=current.snapshot if current is not None else None,
            seen=fleet.replicas(),
            bus_connected=fleet.bus_connected,
            stored=stored,
            now_unix_s=wall_clock(),
            evidence={each.id: services.evidence.evidence(each.id, each.trial) for each in stored.rollouts},
        )
        return state_of(known, search)

    return router


def _static(page: Mapping[str, bytes], name: str) -> Response:
    return Response(page[name], media_type=f"{_MEDIA_TYPES[name]}; charset=utf-8", headers=dict(_HEADERS))


async def _stored(services: RegistryServices) -> Stored:
    """What the database holds; its words where it does not answer, so that the rest is shown all the same."""

    def read(connection: Connection) -> Stored:
        active = rollouts.page(connection, Filter(active=True), None, SHOWN_ACTIVE)
        ended = rollouts.page(connection, Filter(active=False), None, SHOWN_ENDED)
        entries = audit.page(connection, None, SHOWN_AUDIT)
        return Stored([each.rollout for each in (*active, *ended)], entries)

    try:
        return await services.database.run(lambda: services.database.read(read))
    except DatabaseUnavailable as error:
        return Stored(trouble=str(error))
