"""How the pools' processes are: one condition for each pool that is declared, or still on its way out. Pure."""

from collections.abc import Iterable

from functions.api.kinds.inference_service import InferenceService
from functions.api.loader import Loaded
from functions.controller.conditions import Condition
from functions.controller.local.instances import Instance
from functions.controller.local.plan_replicas import replica_ids
from functions.controller.local.reconciler import Wanted

GIVEN_UP_AFTER_FAILURES = 3  # it goes on being tried, but by itself it will hardly get well


def pool_conditions(loaded: Loaded, wanted: Wanted, instances: Iterable[Instance]) -> list[Condition]:
    by_pool: dict[str, list[Instance]] = {}
    for instance in instances:
        if instance.spec.pool is not None:
            by_pool.setdefault(instance.spec.pool, []).append(instance)
    declared = {service.value.pool for service in loaded.of(InferenceService)}
    pools = {pool.name: pool for pool in wanted.pools}
    found = [
        _pool(name, replica_ids(pool, wanted.target.replicas), by_pool.get(name, []), wanted)
        for name, pool in sorted(pools.items())
    ]
    found += [_removing(name, by_pool[name]) for name in sorted(by_pool.keys() - pools.keys())]
    missing = sorted(pool for pool in declared if pool is not None and pool not in pools)
    words = "its processes come next"
    return [*found, *(Condition("InferenceService", name, "Reconciling", "NotStarted", words) for name in missing)]


def _removing(name: str, instances: list[Instance]) -> Condition:
    words = f"{len(instances)} processes are drained, then gone"
    return Condition("InferenceService", name, "Reconciling", "Removing", words)


def _pool(name: str, wanted_ids: list[str], instances: list[Instance], wanted: Wanted) -> Condition:
    serving = [i for i in instances if i.state.phase != "draining"]
    ready = [
        replica_id
        for replica_id in wanted_ids
        if all(i.state.phase == "ready" for i in serving if i.spec.replica_id == replica_id)
        and any(i.spec.replica_id == replica_id for i in serving)
    ]
    words = f"{len(ready)} of {len(wanted_ids)} replicas are ready"
    failing = [i for i in serving if i.state.phase != "ready" and i.state.failures >= GIVEN_UP_AFTER_FAILURES]
    if failing:
        worst = max(failing, key=lambda i: i.state.failures)
        why = f"{worst.name} failed {worst.state.failures} times: {worst.state.reason or worst.state.last_exit}"
        return Condition("InferenceService", name, "Stalled", "Failing", f"{words}; {why}")
    if wanted.stalled and any(replica_id in wanted.stalled for replica_id in wanted_ids):
        return Condition("InferenceService", name, "Stalled", "NotReadyAgain", f"{words}; {wanted.stalled}")
    if len(ready) < len(wanted_ids):
        late = [i for i in serving if i.state.phase != "ready"]
        why = f"; {late[0].name} is {late[0].state.phase}" if late else ""
        reason = f": {late[0].state.reason}" if late and late[0].state.reason else ""
        return Condition("InferenceService", name, "Reconciling", "Starting", words + why + reason)
    if not wanted.settled:
        return Condition("InferenceService", name, "Reconciling", "Changing", f"{words}; processes are being changed")
    return Condition("InferenceService", name, "Ready", "Serving", words)
