"""What the controller says of itself and the fleet: plain values for the control channel, and so for people."""

from typing import Any

from functions.controller.local.instances import Instance
from functions.controller.local.layout import StateLayout
from functions.controller.local.reconciler import Wanted
from functions.controller.local.supervisor import Supervisor
from functions.controller.publication import Publication


def describe(
    *, pid: int, layout: StateLayout, supervisor: Supervisor, wanted: Wanted, publication: Publication, operation: str
) -> dict[str, Any]:
    instances = [instance for _, instance in sorted(supervisor.instances.items())]
    return {
        "controller": {"pid": pid, "operation": operation},
        "target": {"engine": wanted.target.engine, "replicas": wanted.target.replicas},
        "pools": [{"name": pool.name, "replicas": wanted.target.replicas or pool.replicas} for pool in wanted.pools],
        "settled": wanted.settled,
        "ready": wanted.settled and _all_ready(instances),
        "processes": [_process(instance, layout, supervisor) for instance in instances],
        "config": {"problems": list(wanted.problems), "stalled": wanted.stalled, "directory": str(layout.config_dir)},
        "snapshot": {
            "epoch": publication.last.epoch,
            "message": publication.last.message,
            "problems": [*publication.last.problems, *publication.seed_problems],
            "complete": publication.last.complete,
        },
        "artifacts": list(publication.seeded),
    }


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
    """Every process of the present generation is ready; one that is being drained does not count."""
    serving = [instance for instance in instances if instance.state.phase != "draining"]
    return bool(serving) and all(instance.state.phase == "ready" for instance in serving)
