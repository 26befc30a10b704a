"""`/console/state`: pools, replicas, models, rollouts and the last changes in one answer, for the console's page.

Lists are limited, with totals, since a browser requests this every two seconds. Without the database, everything else
is still returned.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Response
from sqlalchemy import Connection

from functions.api.snapshot import ModelEntry, Snapshot
from functions.decisions.rollout.evidence import TrialEvidence
from functions.decisions.rollout.lifecycle import Rollout
from functions.decisions.rollout.report import figures_of
from functions.fleet.heartbeat import Heartbeat
from functions.registry.console_tiers import Tiers, tiers_of
from functions.registry.declared import is_git_model
from functions.registry.fleet_watch import FleetWatch, ReplicaSighting
from functions.registry.services import RegistryServices
from functions.registry.sql import audit, rollouts
from functions.registry.sql.errors import DatabaseUnavailable
from functions.registry.sql.rollouts import Filter

SHOWN_REPLICAS = 200
SHOWN_MODELS = 200
SHOWN_FAILURES = 20
SHOWN_ENDED = 10  # rollouts that have ended
SHOWN_AUDIT = 20
WORDS_MAX_CHARS = 500

# Actions that the transition table allows, by state; the registry checks them again.
ACTIONS: Mapping[str, tuple[str, ...]] = {
    "loading": ("pause", "rollback"),
    "running": ("pause", "promote", "rollback"),
    "paused": ("resume", "promote", "rollback"),
    "rolled_back": ("resume",),
}


@dataclass(frozen=True, slots=True)
class StoredState:
    """State from the database; `trouble` is the error if the database is unavailable."""

    rollouts: Sequence[Rollout] = ()
    audit: Sequence[Mapping[str, Any]] = ()
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class ConsoleInputs:
    snapshot: Snapshot | None
    seen: Sequence[ReplicaSighting]
    bus_connected: bool
    stored: StoredState
    now_unix_s: float
    evidence: Mapping[str, TrialEvidence] = field(default_factory=dict)  # by rollout id


def state_of(known: ConsoleInputs, search: str = "") -> dict[str, Any]:
    models = known.snapshot.models if known.snapshot is not None else ()
    heartbeats = [seen.heartbeat for seen in known.seen]
    adapters = (
        (model.pool, version.engine_name) for model in models if model.type == "lora" for version in model.versions
    )
    tiers = tiers_of(adapters, heartbeats)
    return {
        "now_unix_s": known.now_unix_s,
        "epoch": known.snapshot.epoch if known.snapshot is not None else 0,
        "revision": known.snapshot.revision if known.snapshot is not None else "",
        "bus_connected": known.bus_connected,
        "database": known.stored.trouble,
        "pools": [_pool(name, heartbeats, tiers) for name in sorted({heartbeat.pool for heartbeat in heartbeats})],
        "replicas": [_replica(seen) for seen in known.seen[:SHOWN_REPLICAS]],
        "replicas_total": len(known.seen),
        **_models(models, search),
        "rollouts": [_rollout(rollout, known) for rollout in known.stored.rollouts],
        "audit": [dict(entry) for entry in known.stored.audit[:SHOWN_AUDIT]],
    }


def _pool(name: str, heartbeats: Sequence[Heartbeat], tiers: Sequence[Tiers]) -> dict[str, Any]:
    mine = [heartbeat for heartbeat in heartbeats if heartbeat.pool == name]
    ready = [heartbeat for heartbeat in mine if heartbeat.phase == "ready"]
    found = next((each for each in tiers if each.pool == name), None)
    shown = asdict(found) if found is not None else None
    if shown is not None and found is not None:
        shown["failing"] = [
            {"name": engine_name, "words": words[:WORDS_MAX_CHARS]}
            for engine_name, words in sorted(found.failing.items())[:SHOWN_FAILURES]
        ]
    return {
        "name": name,
        "replicas": len(mine),
        "ready": len(ready),
        "running": sum(heartbeat.running for heartbeat in ready),
        "waiting": sum(heartbeat.waiting for heartbeat in ready),
        "kv_usage_ratio": sum(heartbeat.kv_usage_ratio for heartbeat in ready) / len(ready) if ready else 0.0,
        "room": sum(heartbeat.adapter_room for heartbeat in ready),
        "tiers": shown,
    }


def _replica(seen: ReplicaSighting) -> dict[str, Any]:
    heartbeat = seen.heartbeat
    return {
        "id": heartbeat.replica_id,
        "pool": heartbeat.pool,
        "phase": heartbeat.phase,
        "running": heartbeat.running,
        "waiting": heartbeat.waiting,
        "kv_usage_ratio": heartbeat.kv_usage_ratio,
        "adapters": len(heartbeat.adapters),
        "room": heartbeat.adapter_room,
        "age_s": round(seen.age_s, 1),
        "reason": heartbeat.reason,
    }


def _models(models: Sequence[ModelEntry], search: str) -> dict[str, Any]:
    found = [model for model in models if search in model.id]
    return {
        "models": [_model(model) for model in found[:SHOWN_MODELS]],
        "models_found": len(found),
        "models_total": len(models),
    }


def _model(model: ModelEntry) -> dict[str, Any]:
    return {
        "id": model.id,
        "type": model.type,
        "pool": model.pool,
        "versions": len(model.versions),
        "channels": dict(model.channels),
        "declared_in": model.declared_in if is_git_model(model) else "the API",
    }


def _rollout(rollout: Rollout, known: ConsoleInputs) -> dict[str, Any]:
    evidence = known.evidence.get(rollout.id, TrialEvidence())
    figures = figures_of(rollout, evidence, known.now_unix_s)
    heard = evidence.heard_unix_s
    return {
        "id": rollout.id,
        "model": rollout.model,
        "channel": rollout.channel,
        "from_version": rollout.from_version,
        "to_version": rollout.to_version,
        "state": rollout.state,
        "active": rollout.is_active,
        "percent": rollout.percent,
        "stage": rollout.stage,
        "stages": [stage.percent for stage in rollout.policy.stages],
        "in_stage_s": max(0.0, known.now_unix_s - rollout.stage_began_unix_s) if rollout.is_active else None,
        "duration_s": rollout.current.duration_s,
        "attempt": rollout.attempt,
        "heard_age_s": None if heard is None else max(0.0, known.now_unix_s - heard),
        "why": figures.why,
        "rows": [{**asdict(row), "factor": row.factor} for row in figures.rows],
        "conditions": [asdict(condition) for condition in figures.conditions],
        "actions": list(ACTIONS.get(rollout.state, ())),
    }


SHOWN_ACTIVE = 50


def state_routes(
    services: RegistryServices, fleet: FleetWatch, wall_clock: Callable[[], float] = time.time
) -> APIRouter:
    router = APIRouter(include_in_schema=False)

    @router.get("/console/state", dependencies=[Depends(services.authenticator.operator)])
    async def state(response: Response, search: Annotated[str, Query(max_length=130)] = "") -> dict[str, Any]:
        response.headers["cache-control"] = "no-store"
        stored = await _stored(services)
        current = services.declared.store.current
        known = ConsoleInputs(
            snapshot=current.snapshot if current is not None else None,
            seen=fleet.replicas(),
            bus_connected=fleet.bus_connected,
            stored=stored,
            now_unix_s=wall_clock(),
            evidence={each.id: services.evidence.evidence(each.id, each.trial) for each in stored.rollouts},
        )
        return state_of(known, search)

    return router


async def _stored(services: RegistryServices) -> StoredState:
    """Read the newest active and ended rollouts and audit entries from the database. If it is unavailable, return its
    error text instead."""

    def read(connection: Connection) -> StoredState:
        active = rollouts.page(connection, Filter(active=True), None, SHOWN_ACTIVE)
        ended = rollouts.page(connection, Filter(active=False), None, SHOWN_ENDED)
        entries = audit.page(connection, None, SHOWN_AUDIT)
        return StoredState([each.rollout for each in (*active, *ended)], entries)

    try:
        return await services.database.run(lambda: services.database.read(read))
    except DatabaseUnavailable as error:
        return StoredState(trouble=str(error))
