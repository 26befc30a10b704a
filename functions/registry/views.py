"""JSON views of models and rollouts; models from git and from the API have the same shape. Plain values, no I/O.

Git's models come from the published snapshot, the API's from the database. If both name a model, git's is shown. A
rollout is its row with some computed fields.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from operator import attrgetter
from typing import Any

import msgspec

from functions.api.ids import Digest, ModelId, TenantId, engine_name
from functions.api.snapshot import ModelEntry
from functions.decisions.catalogue import Catalogue
from functions.decisions.rollout import evidence as rollout_evidence
from functions.decisions.rollout.evidence import GroupStats, TrialEvidence
from functions.decisions.rollout.lifecycle import Rollout
from functions.registry.declared import is_git_model
from functions.registry.principal import Principal
from functions.registry.sql.catalogue import StoredModel, StoredVersion

_ID = attrgetter("id")


def git_models_after(
    catalogue: Catalogue, after: str, principal: Principal, *, with_apis: bool
) -> Iterator[dict[str, Any]]:
    """Yield descriptions of git's models after the id `after` that the caller may see, by id; with `with_apis` also the
    API's models as published."""
    models = catalogue.snapshot.models
    for index in range(bisect_right(models, after, key=_ID), len(models)):
        model = models[index]
        if (with_apis or is_git_model(model)) and may_see(catalogue, principal, model.id):
            yield described_model(model)


def may_see(catalogue: Catalogue, principal: Principal, model: str) -> bool:
    """Return True for the operator, for the tenant's own models (whether they exist or not), and for models that it may
    call."""
    if principal.tenant is None or model.startswith(principal.tenant + "/"):
        return True
    return catalogue.may_call(TenantId(principal.tenant), ModelId(model))


def described_model(model: ModelEntry) -> dict[str, Any]:
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
        "rollout": model.rollout,
        "declared_in": model.declared_in if is_git_model(model) else "",
    }


def described_stored_model(model: StoredModel) -> dict[str, Any]:
    digests = {version.name: version.digest for version in model.versions}
    return {
        "id": model.id,
        "object": "model",
        "type": "lora",
        "pool": model.base,
        "versions": [described_version(model.id, version) for version in model.versions],
        "channels": {
            name: {
                "version": channel.version,
                "digest": digests[channel.version],
                "lock_version": channel.lock_version,
            }
            for name, channel in sorted(model.channels.items())
        },
        "rollout": model.rollout,
        "declared_in": "",
    }


def described_version(model: str, version: StoredVersion) -> dict[str, Any]:
    return {
        "name": version.name,
        "digest": version.digest,
        "artifact_uri": version.artifact_uri,
        "engine_name": engine_name(ModelId(model), Digest(version.digest)),
        "created_unix_s": version.created_unix_s,
        "created_by": version.created_by,
    }


def with_in_force(rows: Iterable[dict[str, Any]], published: ModelEntry | None) -> list[dict[str, Any]]:
    """Return the versions with `in_force`: True if the published snapshot has this name with this content."""
    there = {(version.name, version.digest) for version in published.versions} if published is not None else set()
    return [row | {"in_force": (row["name"], row["digest"]) in there} for row in rows]


_QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


def described_rollout(rollout: Rollout) -> dict[str, Any]:
    row: dict[str, Any] = msgspec.to_builtins(rollout)
    return row | {"object": "rollout", "active": rollout.is_active, "percent": rollout.percent}


def described_evidence(evidence: TrialEvidence) -> dict[str, Any]:
    """Describe the evidence of a rollout's two groups twice: sketches for programs (`evidence`) and a few figures for
    people (`groups`)."""
    return {
        "evidence": rollout_evidence.to_builtins(evidence),
        "groups": {"candidate": _figures(evidence.candidate), "control": _figures(evidence.control)},
    }


def _figures(group: GroupStats) -> dict[str, Any]:
    return {
        "requests": group.requests,
        "errors": group.errors,
        "error_ratio": group.error_ratio,
        **{
            name: {label: getattr(group, name).quantile(q) for label, q in _QUANTILES.items()}
            for name in ("ttft_ms", "inter_token_ms", "total_ms")
        },
    }
