"""Replica allocation: pools of a full machine, warm replicas of a pool, and changed roles. Pure.

Replicas are numbered from 0 without gaps; `standby` has the numbers of the warm ones. A change touches as few
replicas as possible, so that none is started or ended without need:

    more     ready warm replicas are promoted first: lowest numbers first, awake ones before sleeping ones, and only as
             many sleeping ones as may be woken. New replicas are added at the end, warm if enough serve already
    fewer    one at a time, the highest number first. If that one is warm, the highest serving replica becomes warm
             instead: it receives no new requests from then on, and is loaded should it be needed again

Worked example (test_worked_example_of_the_allocation): 0, 1, 2 serve and 3 is warm, four in all. If four should serve
and one should be warm, 3 is promoted and 4 starts warm. If three should serve again, 4 ends and 3 becomes warm.
"""

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from types import MappingProxyType

from functions.controller.autoscaling.signals import replicas_of
from functions.decisions.autoscaling.accelerator_slots import SlotDemand
from functions.fleet.pool_board import PoolReport, ReplicaReport


@dataclass(frozen=True, slots=True)
class Allocation:
    count: int  # replicas in all
    standby: frozenset[int] = frozenset()  # the numbers of the warm ones

    def __post_init__(self) -> None:
        if not all(0 <= number < self.count for number in self.standby):
            raise ValueError(f"{sorted(self.standby)} are not all below {self.count}")

    @property
    def serving(self) -> int:
        return self.count - len(self.standby)

    def up_to(self, count: int) -> "Allocation":
        """Return the allocation limited to the replica numbers below `count`."""
        return Allocation(min(count, self.count), frozenset(number for number in self.standby if number < count))


@dataclass(frozen=True, slots=True)
class Sleepers:
    """Sleeping replicas among the warm ones, and the number of them that may be woken."""

    numbers: frozenset[int] = frozenset()
    wake: int = 0
    unheard: frozenset[int] = frozenset()  # warm replicas that may be asleep too: promoted last


_NOBODY = Sleepers()


def next_allocation(
    now: Allocation, serving: int, warm: int, ready: Set[int] = frozenset(), sleepers: Sleepers = _NOBODY
) -> Allocation:
    """Return the next step from `now` towards `serving` and `warm` replicas, or `now` if both are reached or no step is
    possible. `ready` has the numbers of the loaded replicas, `sleepers` the warm ones that sleep."""
    asleep = sorted(now.standby & sleepers.numbers)
    wakeable, resting = frozenset(asleep[: sleepers.wake]), frozenset(asleep[sleepers.wake :])
    promoted = _promote(now, serving, (ready - sleepers.numbers, wakeable, now.standby - resting - sleepers.unheard))
    if promoted.serving > serving:
        return _demote(promoted, warm)
    if promoted.serving < serving or len(promoted.standby) < warm:
        return _grow(promoted, serving, warm)
    if len(promoted.standby) > warm:
        return _shrink(promoted, ready - resting)
    return promoted


def _promote(now: Allocation, serving: int, quickest: Sequence[Set[int]]) -> Allocation:
    """Return `now` with warm replicas promoted until `serving` serve or none is left: those in the first set of
    `quickest` before those in the next, and within a set the lowest numbers first."""
    lacking = max(0, serving - now.serving)
    in_order = sorted(now.standby, key=lambda number: (*(number not in each for each in quickest), number))
    return Allocation(now.count, now.standby - frozenset(in_order[:lacking]))


def _grow(now: Allocation, serving: int, warm: int) -> Allocation:
    """Return `now` with new replicas at the end: first serving ones until `serving` serve, then warm ones until `warm`
    are warm."""
    count = max(now.count, serving + max(warm, len(now.standby)))
    new = range(now.count, count)
    to_serve = serving - now.serving
    return Allocation(count, now.standby | frozenset(new[to_serve:]))


def _demote(now: Allocation, warm: int) -> Allocation:
    """Return `now` with one serving replica fewer: the one with the highest number ends or becomes warm. Unless a warm
    replica is lacking, the last replica ends."""
    last = now.count - 1
    highest = max(number for number in range(now.count) if number not in now.standby)
    if len(now.standby) < warm:
        return Allocation(now.count, now.standby | {highest})
    if last == highest:
        return Allocation(last, now.standby)
    return Allocation(last, (now.standby | {highest}) - {last})


def _shrink(now: Allocation, ready: Set[int]) -> Allocation:
    """Remove one warm replica: end the last replica. If that one serves, promote a loaded one in its place, or end
    none."""
    last = now.count - 1
    if last in now.standby:
        return Allocation(last, now.standby - {last})
    loaded = now.standby & ready
    return Allocation(last, now.standby - {max(loaded)}) if loaded else now


__all__ = ["SlotDemand", "grant_slots"]


_ONE_EACH: Mapping[str, int] = MappingProxyType({})


def grant_slots(
    demands: Mapping[str, SlotDemand], present: Mapping[str, int], most: int, costs: Mapping[str, int] = _ONE_EACH
) -> dict[str, SlotDemand]:
    """Return the serving and warm replicas that each pool may have of `most` accelerators; `present` counts the
    replicas that serve now.

    `costs` has the accelerators that one replica of a pool needs; the default is one.

        1  the number in a pool's YAML is granted even above the limit
        2  serving replicas come before warm ones, and existing serving replicas before new ones
        3  the rest is granted one replica at a time, to the pool with the smallest part of its demand. A rest that is
           too small for one of its replicas goes to another pool

    Worked example (test_worked_example_of_a_full_machine): 4 engines fit. A has 2 and demands 4 and 1 warm, B has 1
    and demands 1 and 1 warm: A gets 3 and B 1, and no pool has a warm one. If A's replicas need two accelerators
    each, the present replicas use 5 already: no pool gets more.
    """
    given = {name: min(demand.serving, max(demand.least, present.get(name, 0))) for name, demand in demands.items()}
    left = most - sum(count * costs.get(name, 1) for name, count in given.items())
    left = _distribute_slots(given, {name: demand.serving for name, demand in demands.items()}, left, costs)
    warm = dict.fromkeys(demands, 0)
    _distribute_slots(warm, {name: demand.warm for name, demand in demands.items()}, left, costs)
    return {name: SlotDemand(given[name], warm[name], demand.least) for name, demand in demands.items()}


def _distribute_slots(given: dict[str, int], wanted: Mapping[str, int], left: int, costs: Mapping[str, int]) -> int:
    """Increase `given` one replica at a time until each pool has what it wants or no pool's replica fits into the rest;
    return the accelerators that are left."""
    while True:
        lacking = [name for name in sorted(given) if given[name] < wanted[name] and costs.get(name, 1) <= left]
        if not lacking:
            return left
        chosen = min(lacking, key=lambda name: (given[name] / wanted[name], name))
        given[chosen] += 1
        left -= costs.get(chosen, 1)


@dataclass(frozen=True, slots=True)
class RoleOrder:
    replica_id: str
    host: str
    port: int
    standby: bool


_MAX_DIGITS = 6


def role_orders(report: PoolReport, pool: str, allocation: Allocation) -> list[RoleOrder]:
    """Return orders for the pool's replicas that report ready although the allocation has them warm, or the reverse.
    Replicas that still load, or without a number or a peer port, get none."""
    orders = []
    for replica in replicas_of(report, pool):
        number = number_of(replica)
        if number is None or number >= allocation.count or not replica.peer_port:
            continue
        standby = number in allocation.standby
        if replica.phase == ("ready" if standby else "warm"):
            orders.append(_role_order(replica, standby=standby))
    return orders


def number_of(replica: ReplicaReport) -> int | None:
    """Return the number in a replica's id (3 for `pool-3`); None if the id has another form."""
    text = replica.replica_id.removeprefix(f"{replica.pool}-")
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS else None


def role_orders_by_count(replicas: Iterable[ReplicaReport], serving: int, warm: int) -> list[RoleOrder]:
    """Return orders for replicas without numbers, given how many should serve and how many should be warm.

    If too few serve, the first warm ones by name are promoted. If too many serve, the last ones by name become warm,
    up to `warm`; the others serve until the cluster ends them. Worked example (test_worked_example_of_counts): a, b,
    c serve and none is warm; 2 and 1 are wanted: c becomes warm.
    """
    known = sorted((each for each in replicas if each.peer_port), key=lambda each: each.replica_id)
    ready = [each for each in known if each.phase == "ready"]
    loaded = [each for each in known if each.phase == "warm"]
    if len(ready) < serving:
        return [_role_order(each, standby=False) for each in loaded[: serving - len(ready)]]
    too_many = min(len(ready) - serving, max(0, warm - len(loaded)))
    return [_role_order(each, standby=True) for each in ready[len(ready) - too_many :]]


def _role_order(replica: ReplicaReport, *, standby: bool) -> RoleOrder:
    return RoleOrder(replica.replica_id, replica.host, replica.peer_port, standby)
