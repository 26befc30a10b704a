"""`GET /internal/v1/weights/{name}/{version}`: the digest that is published for a version of a base model.

For node fetchers, which have the agents' credential: what git pins counts more than what lies in the store.
"""

from typing import Any

from fastapi import APIRouter, Depends

from functions.api.snapshot_index import base_of
from functions.fleet.role_credentials import RoleCredentials
from functions.registry.conventions import require_role
from functions.registry.errors import ApiError
from functions.registry.store import SnapshotStore


def weights_routes(store: SnapshotStore, credentials: RoleCredentials) -> APIRouter:
    router = APIRouter(dependencies=[Depends(require_role(credentials, "agent"))])

    @router.get("/internal/v1/weights/{name}/{version}")
    async def published(name: str, version: str) -> dict[str, Any]:
        """What a replica of this version is to load."""
        model = base_of(store.feed.content.tables.models, name)
        versions = model.versions if model is not None else ()
        for each in versions:
            if each.name == version:
                return {"object": "weights", "name": name, "version": version, "digest": each.digest}
        raise ApiError(404, "weights_not_found", f"no version {version[:80]!r} of a base {name[:80]!r} is published")

    return router
