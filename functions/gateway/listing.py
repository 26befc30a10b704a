"""`GET /v1/models`: what a key may call, and in which state it is. Plain values; the routes are in `app.py`."""

from typing import Any

from functions.api.ids import DEFAULT_CHANNEL, TenantId
from functions.api.snapshot import ModelEntry
from functions.decisions.catalogue import Catalogue
from functions.fleet.view import FleetView


def list_models(catalogue: Catalogue, fleet: FleetView, tenant: TenantId) -> dict[str, Any]:
    models = [_describe(catalogue, fleet, model) for model in catalogue.callable_models(tenant)]
    return {"object": "list", "data": models}


def describe_model(catalogue: Catalogue, fleet: FleetView, tenant: TenantId, requested: str) -> dict[str, Any] | None:
    """One model by id, with or without a selector; None where this tenant has no such model."""
    resolved = catalogue.resolve(tenant, requested)
    if resolved is None:
        return None
    return _describe(catalogue, fleet, catalogue.models[resolved.id]) | {"id": requested}


def _describe(catalogue: Catalogue, fleet: FleetView, model: ModelEntry) -> dict[str, Any]:
    pool = catalogue.pools[model.pool]
    versions = {version.name: version for version in model.versions}
    return {
        "id": model.id,
        "object": "model",
        "created": int(catalogue.snapshot.compiled_unix_s),
        "owned_by": model.id.split("/")[0] if "/" in model.id else "shoal",
        "parent": model.pool if model.type == "lora" else None,
        "context_window": pool.context_window_tokens,
        "channels": {
            channel: {"version": name, "digest": versions[name].digest} for channel, name in model.channels.items()
        },
        "capacity": _capacity(fleet, model),
    }


def _capacity(fleet: FleetView, model: ModelEntry) -> dict[str, Any]:
    """Of the stable version (or of the only one): replicas that could answer now."""
    stable = model.channels.get(DEFAULT_CHANNEL)
    version = next((version for version in model.versions if version.name == stable), None)
    replicas = [replica for replica in fleet.pool(model.pool).replicas if replica.phase == "ready"]
    if model.type == "lora":
        replicas = [replica for replica in replicas if version is not None and version.engine_name in replica.adapters]
    return {"ready": bool(replicas), "replicas_ready": len(replicas)}
