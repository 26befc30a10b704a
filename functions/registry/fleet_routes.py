"""`/v1/fleet`: every replica as it last spoke."""

from typing import Any

import msgspec
from fastapi import APIRouter

from functions.registry.fleet_watch import FleetWatch, Seen


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

    return router


def _described(seen: Seen) -> dict[str, Any]:
    return {**msgspec.structs.asdict(seen.heartbeat), "age_s": round(seen.age_s, 3)}
