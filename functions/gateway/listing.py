"""`GET /v1/models`: what a key may call, and in which state it is. Plain values; the routes are in `app.py`."""

from typing import Any

import msgspec

from functions.api.ids import DEFAULT_CHANNEL, TenantId
from functions.api.snapshot import ModelEntry, QuotaEntry, VersionEntry
from functions.decisions.catalogue import Catalogue
from functions.fleet.view import FleetView


def list_models(catalogue: Catalogue, fleet: FleetView, tenant: TenantId) -> dict[str, Any]:
    quota = catalogue.quota_of(tenant)
    models = [_describe(catalogue, fleet, model, quota) for model in catalogue.callable_models(tenant)]
    return {"object": "list", "data": models}


def describe_model(catalogue: Catalogue, fleet: FleetView, tenant: TenantId, requested: str) -> dict[str, Any] | None:
    """One model by id, with or without a selector; None where this tenant has no such model."""
    resolved = catalogue.resolve(tenant, requested)
    if resolved is None:
        return None
    model = catalogue.models[resolved.id]
    return _describe(catalogue, fleet, model, catalogue.quota_of(tenant)) | {"id": requested}


def _describe(catalogue: Catalogue, fleet: FleetView, model: ModelEntry, quota: QuotaEntry | None) -> dict[str, Any]:
    window_tokens = catalogue.pools[model.pool].context_window_tokens
    versions = {version.name: version for version in model.versions}
    return {
        "id": model.id,
        "object": "model",
        "created": int(catalogue.snapshot.compiled_unix_s),
        "owned_by": model.id.split("/")[0] if "/" in model.id else "shoal",
        "parent": model.pool if model.type == "lora" else None,
        "context_window": _context_window(window_tokens, quota),
        "tier": _tier(quota),
        "channels": {
            channel: {"version": name, "digest": versions[name].digest} | _rollout(model, channel, versions)
            for channel, name in model.channels.items()
        },
        "capacity": _capacity(fleet, model),
    }


def _rollout(model: ModelEntry, channel: str, versions: dict[str, VersionEntry]) -> dict[str, Any]:
    """The version that a part of the channel's requests gets already; nothing where all get the same."""
    split = next((split for split in model.splits if split.channel == channel), None)
    if split is None:
        return {}
    candidate = {"version": split.candidate, "digest": versions[split.candidate].digest}
    return {"rollout": {"id": split.rollout, "stage": split.stage, "percent": split.percent, "candidate": candidate}}


def _context_window(window_tokens: int, quota: QuotaEntry | None) -> int:
    """What this tenant may fill of it."""
    cap_tokens = quota.limits.max_context_tokens if quota is not None else None
    return window_tokens if cap_tokens is None else min(window_tokens, cap_tokens)


def _tier(quota: QuotaEntry | None) -> dict[str, Any] | None:
    """Its name and the limits that it has; what is not in it is not limited."""
    if quota is None:
        return None
    limits = msgspec.structs.asdict(quota.limits)
    return {"name": quota.name, "limits": {name: limit for name, limit in limits.items() if limit is not None}}


def _capacity(fleet: FleetView, model: ModelEntry) -> dict[str, Any]:
    """Of the stable version (or of the only one): replicas that could answer now."""
    stable = model.channels.get(DEFAULT_CHANNEL)
    version = next((version for version in model.versions if version.name == stable), None)
    replicas = [replica for replica in fleet.pool(model.pool).replicas if replica.phase == "ready"]
    if model.type == "lora":
        replicas = [replica for replica in replicas if version is not None and version.engine_name in replica.adapters]
    return {"ready": bool(replicas), "replicas_ready": len(replicas)}
