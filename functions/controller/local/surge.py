"""Surge: one extra replica while a pool is changed, so that it never has too few; started first, removed last.

The InferenceService's deploymentStrategy says whether it is allowed (`maxSurge: 0` means: drain first, because no
accelerator is idle). The machine's memory decides whether it is possible. If not, replicas are replaced one by one,
each drained first.

Memory needed: that of the pool's largest engine now, and a fifth more for the cost of a start.
Worked example (test_a_surge_needs_memory): an engine of 1.5 GB needs 1.8 GB free; with 1.7 GB there is no surge.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import psutil

from functions.controller.local.context import PlanContext
from functions.controller.local.plan import agent, engine, plan_fleet
from functions.controller.local.plan_weights import fetchers
from functions.controller.local.pools import Pool, Target
from functions.controller.local.ports import MAX_SLOTS
from functions.controller.local.slots import TooManyReplicas
from functions.controller.local.spec import ProcessSpec

NEEDED_RATIO = 1.2

Surge = Callable[[str], Mapping[str, ProcessSpec]]  # from a pool's name to the processes of one extra replica, or none


def no_surge(_: str) -> Mapping[str, ProcessSpec]:
    return {}


def one_more(
    context: PlanContext, pools: Iterable[Pool], target: Target, slots: Mapping[str, int], name: str
) -> dict[str, ProcessSpec]:
    """Return the specs that one extra replica would add to the pool; none if it is not allowed or no slot is left."""
    counted = [replace(pool, replicas=len(pool.folders) or target.replicas or pool.replicas) for pool in pools]
    if not any(pool.name == name and pool.may_surge for pool in counted):
        return {}
    more = [_with_one(pool) if pool.name == name else pool for pool in counted]
    as_counted = Target(target.engine)
    try:
        before = plan_fleet(context, counted, as_counted, slots)
        after = plan_fleet(context, more, as_counted, slots)
    except TooManyReplicas:
        return {}
    return {spec.name: spec for spec in after.values() if spec.name not in before}


def _with_one(pool: Pool) -> Pool:
    return replace(pool, replicas=pool.replicas + 1, folders=(*pool.folders, *pool.folders[-1:]))


def one_more_of_each(
    context: PlanContext, pools: Iterable[Pool], target: Target, slots: Mapping[str, int]
) -> list[dict[str, ProcessSpec]]:
    """Return, for each pool, the specs of an extra replica that an earlier controller may have left serving; empty if
    the pool may have none."""
    chosen = tuple(pools)
    return [one_more(context, chosen, target, slots, pool.name) for pool in chosen]


def all_that_had_slots(
    context: PlanContext, pools: Iterable[Pool], target: Target, slots: Mapping[str, int]
) -> dict[str, ProcessSpec]:
    """Return the specs of all replicas of these pools that the ledger names, whatever number is wanted now. A replica
    that the autoscaler added, or that was being drained, may still serve although no record says any more that it was
    wanted."""
    chosen = tuple(pools)
    numbered = {f"{pool.name}-{number}": pool for pool in chosen for number in range(MAX_SLOTS)}
    specs = fetchers(context, chosen)
    for replica_id, slot in slots.items():
        pool = numbered.get(replica_id)
        if pool is not None and 0 <= slot < MAX_SLOTS:
            specs.append(engine(context, pool, replica_id, slot, target.engine))
            specs.append(agent(context, pool, replica_id, slot))
    return {spec.name: spec for spec in specs}


def has_memory(engine_pids: Iterable[int], available_bytes: int | None = None) -> bool:
    """Return True if the machine has NEEDED_RATIO times the memory of the largest of these engines free, or if none
    of them can be measured."""
    sizes = [size for pid in engine_pids if (size := _resident_bytes(pid)) is not None]
    available = psutil.virtual_memory().available if available_bytes is None else available_bytes
    return available >= NEEDED_RATIO * max(sizes, default=0)


def _resident_bytes(pid: int) -> int | None:
    """Return the memory of a process and all its descendants in bytes, or None if it cannot be read. Memory that they
    share counts once."""
    try:
        process = psutil.Process(pid)
        return sum(each.memory_full_info().pss for each in (process, *process.children(recursive=True)))
    except psutil.Error:
        return None
