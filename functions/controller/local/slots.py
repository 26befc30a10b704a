"""Slots: a small number per replica, from which its ports follow.

Law: a replica keeps its slot for as long as it exists, so that scaling one pool never moves (and so never restarts) a
replica of another.
"""

from collections.abc import Iterable, Mapping

from functions.controller.autoscaling.bounds import Wish, granted


class TooManyReplicas(Exception):
    """More replicas than there are ports for; lower minReplicas or --replicas."""


def fitting(declared: Mapping[str, int], asked: Mapping[str, int], max_slots: int) -> dict[str, int]:
    """How many replicas each pool gets: what its YAML declares comes first, of what it is asked to have.

    Worked example (test_worked_example_of_what_fits): the autoscaler has 19 of A, which declares 2, and B comes with 4:
    B gets its 4 and A keeps 16.
    """
    wishes = {name: Wish(asked.get(name, least), least=least) for name, least in declared.items()}
    return {name: wish.serving for name, wish in granted(wishes, {}, max_slots).items()}


def assign_slots(replica_ids: Iterable[str], former: Mapping[str, int], max_slots: int) -> dict[str, int]:
    """A slot for each replica: the one it had, else the lowest free one, in the order of the ids."""
    wanted = sorted(set(replica_ids))
    if len(wanted) > max_slots:
        raise TooManyReplicas(f"{len(wanted)} replicas are asked for; this machine's port range holds {max_slots}")
    kept: dict[str, int] = {}
    for replica_id in wanted:
        slot = former.get(replica_id)
        if slot is not None and 0 <= slot < max_slots and slot not in kept.values():
            kept[replica_id] = slot
    free = iter(slot for slot in range(max_slots) if slot not in kept.values())
    return {replica_id: kept[replica_id] if replica_id in kept else next(free) for replica_id in wanted}
