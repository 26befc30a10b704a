"""Pools and settings in, process specs out: the local target's whole knowledge of what runs with which arguments.

Law: pure. The same pools, target and settings give the same specs, so that a controller that starts again recognises
what runs. Engines wait for nothing (they take longest); the registry waits for the bus, gateway and agents for it.
Neighbours: `plan_servers` (what every fleet has), `plan_replicas` (what each pool adds).
"""

from collections.abc import Iterable, Mapping

from functions.controller.local.context import PlanContext
from functions.controller.local.plan_replicas import agent, engine, replica_ids
from functions.controller.local.plan_servers import bus, gateway, registry, s3
from functions.controller.local.pools import Pool
from functions.controller.local.ports import MAX_SLOTS
from functions.controller.local.slots import assign_slots
from functions.controller.local.spec import ProcessSpec
from functions.controller.local.target import Target


def plan_fleet(
    context: PlanContext, pools: Iterable[Pool], target: Target, former_slots: Mapping[str, int]
) -> dict[str, ProcessSpec]:
    """Specs by process name."""
    specs = [s3(context), bus(context), registry(context), gateway(context)]
    by_replica = {
        replica_id: pool
        for pool in sorted(pools, key=lambda pool: pool.name)
        for replica_id in replica_ids(pool, target.replicas)
    }
    slots = assign_slots(by_replica, former_slots, MAX_SLOTS)
    for replica_id, pool in by_replica.items():
        slot = slots[replica_id]
        specs.append(engine(context, pool, replica_id, slot, target.engine))
        specs.append(agent(context, pool, replica_id, slot))
    return {spec.name: spec for spec in specs}
