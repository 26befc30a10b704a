"""`/v1/models`: the catalogue as it is published, for operators and the command line."""

from typing import Any

from fastapi import APIRouter

from functions.api.ids import ModelId
from functions.api.snapshot import ModelEntry
from functions.registry.errors import ApiError
from functions.registry.store import SnapshotStore


def model_routes(store: SnapshotStore) -> APIRouter:
    router = APIRouter()

    @router.get("/v1/models")
    async def all_models() -> dict[str, Any]:
        """Every model, by id."""
        return {
            "object": "list",
            "snapshot_epoch": store.epoch,
            "data": [_described(model) for model in _models(store)],
        }

    @router.get("/v1/models/{name}")
    async def base_model(name: str) -> dict[str, Any]:
        """One base model."""
        return _described(_find(store, ModelId(name)))

    @router.get("/v1/models/{tenant}/{name}")
    async def tenants_model(tenant: str, name: str) -> dict[str, Any]:
        """One model of a tenant."""
        return _described(_find(store, ModelId(f"{tenant}/{name}")))

    return router


def _models(store: SnapshotStore) -> tuple[ModelEntry, ...]:
    return store.current.snapshot.models if store.current is not None else ()


def _find(store: SnapshotStore, model_id: ModelId) -> ModelEntry:
    model = store.feed.content.tables.models.get(model_id)
    if model is not None:
        return model
    message = f"there is no model {model_id[:160]!r} in the published snapshot; GET /v1/models lists what there is"
    raise ApiError(404, "model_not_found", message, "model")


def _described(model: ModelEntry) -> dict[str, Any]:
    by_name = {version.name: version for version in model.versions}
    return {
        "id": model.id,
        "object": "model",
        "type": model.type,
        "pool": model.pool,
        "versions": [
            {
                "name": version.name,
                "digest": version.digest,
                "artifact_uri": version.artifact_uri,
                "engine_name": version.engine_name,
            }
            for version in model.versions
        ],
        "channels": {
            channel: {"version": version, "digest": by_name[version].digest}
            for channel, version in model.channels.items()
        },
        "declared_in": model.declared_in,
    }
