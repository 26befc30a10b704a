"""Status of the controller and its fleet as plain values, for the control channel and for people."""

import time
from dataclasses import asdict
from typing import Any

import msgspec

from functions.controller.autoscaling.scaler import PoolSize
from functions.controller.conditions import ObservedState, conditions, pool_conditions
from functions.controller.gitops.following import BranchFollower
from functions.controller.gitops.words import printable
from functions.controller.local.instances import Instance
from functions.controller.local.layout import StateLayout
from functions.controller.local.reconciler import DesiredFleet
from functions.controller.local.supervisor import Supervisor
from functions.controller.snapshot.publication import Publication
from functions.controller.snapshot.registry_client import LastHeartbeat
from functions.fleet.heartbeat import Heartbeat

SHOWN_PROBLEMS = 50


def describe(
    *,
    pid: int,
    layout: StateLayout,
    supervisor: Supervisor,
    wanted: DesiredFleet,
    following: BranchFollower,
    publication: Publication,
    rollouts: dict[str, Any],
    replicas: tuple[LastHeartbeat, ...] | str,
    gateway_epoch: int | None,
    scaling: list[PoolSize],
    operation: str,
) -> dict[str, Any]:
    instances = [instance for _, instance in sorted(supervisor.instances.items())]
    heard = replicas if isinstance(replicas, tuple) else ()
    heartbeats = tuple(each.heartbeat for each in heard if not each.is_silent)
    return {
        "controller": {"pid": pid, "operation": operation},
        "target": {"engine": wanted.target.engine, "replicas": wanted.target.replicas},
        "pools": [{"name": pool.name, "replicas": wanted.target.replicas or pool.replicas} for pool in wanted.pools],
        "scaling": [shown.to_dict() for shown in scaling],
        "settled": wanted.settled,
        "stalled": wanted.stalled,
        "ready": wanted.settled and _all_ready(instances),
        "processes": [_process(instance, layout, supervisor) for instance in instances],
        "revision": _revision(following, layout),
        "snapshot": _snapshot(publication, gateway_epoch),
        "rollouts": rollouts,
        "artifacts": list(publication.seeded),
        "replicas": [{**msgspec.to_builtins(each.heartbeat), "age_s": each.age_s} for each in heard],
        "registry_problem": replicas if isinstance(replicas, str) else "",
        **_objects(following, publication, wanted, instances, heartbeats),
    }


def _revision(following: BranchFollower, layout: StateLayout) -> dict[str, Any]:
    record, desired, tip = following.record, following.desired, following.branch.tip
    return {
        "repository": str(layout.gitops_dir),
        "branch": following.branch.name,
        "tip": following.branch.revision_of(tip) if tip is not None and tip.commit else "",
        "tip_message": tip.message if tip is not None else "",
        "desired": desired.revision if desired is not None else "",
        "message": desired.message if desired is not None else "",
        "published": desired is not None and desired.published,
        "last_attempted": record.last_attempted,
        "last_applied": record.last_applied,
        "applied_unix_s": record.applied_unix_s,
        "suspended": msgspec.to_builtins(record.suspended),
        "problems": [printable(str(problem)) for problem in following.branch.refused[:SHOWN_PROBLEMS]],
        "problem_count": len(following.branch.refused),
        "trouble": following.branch.trouble,
        "history": msgspec.to_builtins(record.history),
    }


def _snapshot(publication: Publication, gateway_epoch: int | None) -> dict[str, Any]:
    last, snapshot = publication.last, publication.snapshot
    return {
        "epoch": last.epoch,
        "message": last.message,
        "problems": [*last.all_problems[:SHOWN_PROBLEMS], *publication.seed_problems[:SHOWN_PROBLEMS]],
        "held": list(last.held),
        "complete": last.complete,
        "age_s": round(max(0.0, time.time() - snapshot.compiled_unix_s), 1) if snapshot is not None else None,
        "gateway_epoch": gateway_epoch,
    }


def _objects(
    following: BranchFollower,
    publication: Publication,
    wanted: DesiredFleet,
    instances: list[Instance],
    heartbeats: tuple[Heartbeat, ...],
) -> dict[str, Any]:
    desired = following.desired
    if desired is None:
        return {"counts": {}, "objects": []}
    last = publication.last
    seen = ObservedState(
        snapshot=publication.snapshot,
        is_current=last.revision == desired.revision and last.kind in ("published", "unchanged"),
        problems=last.all_problems,
        held=last.held,
        rollouts=last.rollouts,
        heartbeats=heartbeats,
        now_unix_s=time.time(),
    )
    found = conditions(desired.loaded, pool_conditions(desired.loaded, wanted, instances), seen)
    return {"counts": found.counts, "objects": [asdict(condition) for condition in found.listed]}


def _process(instance: Instance, layout: StateLayout, supervisor: Supervisor) -> dict[str, Any]:
    spec, state = instance.spec, instance.state
    return {
        "name": instance.name,
        "role": spec.role,
        "pool": spec.pool,
        "replica": spec.replica_id,
        "phase": state.phase,
        "pid": state.pid,
        "port": spec.port,
        "restarts": state.restarts,
        "failures": state.failures,
        "ever_ready": state.ever_ready,
        "age_s": round(supervisor.age_s(instance), 1),
        "reason": state.reason,
        "last_exit": state.last_exit,
        "log": str(layout.log_file(spec.name)),
    }


def _all_ready(instances: list[Instance]) -> bool:
    """Return True if there are processes that are not draining, and all of those are ready."""
    serving = [instance for instance in instances if instance.state.phase != "draining"]
    return bool(serving) and all(instance.state.phase == "ready" for instance in serving)
