"""Accelerator slots of a node: how many of each pool's engines may be awake. Pure functions.

An awake engine holds a slot: one accelerator, or on a machine without any, one of the engines that it may run. A
sleeping warm engine holds no slot, only host memory. So sleeping warm replicas of several pools share the free slots:
each of them may be woken, but not all.

    1  a serving engine keeps its slot; the number of replicas in a pool's YAML (`least`) is granted regardless of slots
    2  serving replicas come before warm ones. A warm engine that is awake already has its slot. Waking or starting one
       takes a free slot, which goes to the pool with the smallest part of its demand. Promoting a warm engine that
       reports nothing also takes a slot: it may be asleep and must then be woken
    3  if a pool still lacks a slot, awake warm engines are ended; so are surplus ones
    4  a warm engine loads awake, on a free slot. Among pools whose engines sleep afterwards one engine loads at a time,
       before those of pools that keep the slot. An engine that takes longer than a start may take blocks no other

    free = slots - (serving + warm and awake + ending)            an engine that is being ended has its slot until then

Worked example (test_worked_example_of_a_spare_slot): 3 slots; A and B each serve with one and want a warm one. A's
warm engine is loaded first, B's when A's sleeps; then one slot is free and two engines sleep. Both are to serve with
two: A's is woken, and B's waits until A releases a slot.

Neighbours: `functions.controller.autoscaling` counts the engines and carries the result out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SlotDemand:
    """Replicas that one pool should have."""

    serving: int
    warm: int = 0
    least: int = 0  # minimum of serving replicas, from the pool's YAML


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldSlots:
    """The engines that one pool has now."""

    serving: int = 0  # serving, starting to serve, or being woken to serve
    loaded: int = 0  # warm, loaded and awake
    loading: int = 0  # warm and not yet loaded
    unheard: int = 0  # warm, and not known to be awake: counted as awake, except for promotion
    asleep: int = 0  # warm, without a slot
    spared: int = 0  # part of loaded or unheard that is not ended for other pools
    stuck: int = 0  # part of loading or unheard that takes longer than a start may take
    sleeps: bool = False  # its warm engines fall asleep once they are loaded

    @property
    def awake(self) -> int:
        return self.serving + self.loaded + self.loading + self.unheard


@dataclass(frozen=True, slots=True)
class SlotAllotment:
    """Replicas that one pool may have now."""

    serving: int
    warm: int
    wake: int = 0  # sleeping ones that may be woken


def free_slots(held: Mapping[str, HeldSlots], ending: int, slots: int) -> int:
    return max(0, slots - ending - sum(each.awake for each in held.values()))


def sleepers_without_slot(held: Mapping[str, HeldSlots], ending: int, slots: int) -> dict[str, int]:
    """Return by pool the number of sleeping replicas without a slot to wake on: other pools cannot borrow them."""
    free = free_slots(held, ending, slots)
    return {name: max(0, each.asleep - free) for name, each in held.items()}


def allot_slots(
    demands: Mapping[str, SlotDemand], held: Mapping[str, HeldSlots], ending: int, slots: int
) -> dict[str, SlotAllotment]:
    """Return the allotment of each pool. `held` has every pool of `demands`; `ending` other engines hold some of the
    `slots`, too."""
    pools = {name: _Pool(demand, held[name]) for name, demand in sorted(demands.items())}
    free = free_slots(held, ending, slots)
    for pool in pools.values():
        free -= pool.serve_guaranteed(free)
    free = _promote_lacking(list(pools.values()), max(0, free))
    _release_slots(list(pools.values()), slots - ending)
    free = _start_warm(list(pools.values()), free)
    for pool in pools.values():
        free -= pool.wake_for_surplus(free)
    return {name: SlotAllotment(pool.serving, pool.warm, pool.woken) for name, pool in pools.items()}


@dataclass(slots=True)
class _Pool:
    """One pool during the decision. Methods that use slots return how many."""

    demand: SlotDemand
    held: HeldSlots
    serving: int = 0
    loaded: int = 0  # warm from now on; includes surplus serving engines, which are loaded and hold slots
    loading: int = 0
    unheard: int = 0
    asleep: int = 0
    spared: int = 0
    woken: int = 0
    started: int = 0  # new warm engines to start

    def __post_init__(self) -> None:
        self.serving = min(self.demand.serving, self.held.serving)
        too_many = self.held.serving - self.serving
        self.loaded, self.asleep = self.held.loaded + too_many, self.held.asleep
        self.loading, self.unheard = self.held.loading, self.held.unheard
        self.spared = self.held.spared + (too_many if self.held.sleeps else 0)

    @property
    def lacks(self) -> int:
        return self.demand.serving - self.serving

    @property
    def present(self) -> int:
        """Number of warm engines that stay, awake or asleep."""
        return self.loaded + self.loading + self.unheard + self.asleep

    @property
    def spare(self) -> int:
        """Number of awake or loading warm engines whose slot can be released."""
        return max(0, self.loaded + self.loading + self.unheard - self.spared)

    @property
    def is_loading(self) -> bool:
        return self.loading + self.unheard > self.held.stuck

    @property
    def warm(self) -> int:
        return min(self.demand.warm, self.present) + self.started

    def serve_guaranteed(self, free: int) -> int:
        """Step 1: let the pool's minimum of replicas serve, as far as it is wanted, whatever the number of free slots.
        Return the slots used."""
        taken = 0
        while self.serving < min(self.demand.serving, self.demand.least):
            taken += self.promote(max(1, free - taken))
        return taken

    def can_promote(self, free: int) -> bool:
        return bool(self.lacks > 0 and (self.loaded or self.loading or free > 0))

    def promote(self, free: int) -> int:
        """Make one more replica serve, by the quickest way that `free` slots allow; return the slots that it uses."""
        self.serving += 1
        if self.loaded:
            self.loaded -= 1
            return 0
        if self.asleep and free > 0:
            self.asleep, self.woken = self.asleep - 1, self.woken + 1
            return 1
        if self.loading:
            self.loading -= 1
            return 0
        self.unheard = max(0, self.unheard - 1)
        return 1

    def release_slot(self) -> None:
        if self.loading:
            self.loading -= 1
        elif self.unheard > self.spared:
            self.unheard -= 1
        else:
            self.loaded -= 1

    def start(self) -> None:
        self.started += 1

    def wake_for_surplus(self, free: int) -> int:
        """Allow one wake-up if a slot is free, and return the slots used: a sleeping engine may replace a serving one
        with a higher number, which ends."""
        if free > 0 and self.asleep and self.present > self.demand.warm and not self.lacks:
            self.woken += 1
            return 1
        return 0


def _promote_lacking(pools: Sequence[_Pool], free: int) -> int:
    """Step 2: promote replicas one at a time, always for the pool that has the smallest part of its demand. Return the
    free slots that remain."""
    while able := [pool for pool in pools if pool.can_promote(free)]:
        free -= min(able, key=lambda pool: pool.serving / pool.demand.serving).promote(free)
    return free


def _release_slots(pools: Sequence[_Pool], slots: int) -> None:
    """Step 3: release slots of awake warm engines, as many as are too many or as pools lack for serving, first of the
    pool with the most to spare."""
    awake = sum(pool.serving + pool.spare for pool in pools)
    too_many = max(0, awake - slots) + sum(pool.lacks for pool in pools)
    for _ in range(too_many):
        most = max(pools, key=lambda pool: pool.spare, default=None)
        if most is None or not most.spare:
            return
        most.release_slot()


def _start_warm(pools: Sequence[_Pool], free: int) -> int:
    """Step 4: start warm engines, at most one at a time among those that will fall asleep. Return the free slots that
    remain."""
    sleepers = [pool for pool in pools if pool.held.sleeps]
    is_loading = any(pool.is_loading for pool in sleepers)
    free -= _start(sleepers, 0 if is_loading else min(1, free))
    return free - _start([pool for pool in pools if not pool.held.sleeps], free)


def _start(pools: Sequence[_Pool], most: int) -> int:
    """Start up to `most` engines, each for the pool with the smallest part of its demand; return how many."""
    for started in range(most):
        lacking = [pool for pool in pools if pool.warm < pool.demand.warm]
        if not lacking:
            return started
        min(lacking, key=lambda pool: pool.warm / pool.demand.warm).start()
    return most
