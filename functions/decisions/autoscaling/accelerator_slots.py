"""Accelerator slots of a node: which of its engines may be awake. Pure.

An engine that is awake has a slot (an accelerator; where there is none, one of as many as the machine may run). A warm
one that sleeps has none, only host memory, so that sleeping warm replicas of several pools share the slots that nobody
serves on: each may be woken, and not all of them.

    1  who serves keeps the slot, and what a pool's YAML asks for is its own whatever the number of slots
    2  who is to serve comes before who is to be warm. A warm one that is awake has its slot already; waking one that
       sleeps, or starting one, takes a free slot: it goes to the pool that has got the smallest part of what it wants.
       Promoting one of which nothing is heard does too: it may well sleep, and is then woken
    3  where somebody still lacks a slot, warm ones that are awake give theirs up (they end); so do those too many
    4  a warm one loads awake, on a free slot. Of the pools whose engines sleep afterwards one loads at a time, before
       those of pools that keep the slot. For one that takes longer than a start may take nobody waits

    free = slots - (serving + warm and awake + ending)            an engine that is being ended has its slot until then

Worked example (test_worked_example_of_a_spare_slot): 3 slots; A and B serve with one each and want a warm one. A's is
loaded first, B's when A's sleeps: then one slot is free and two sleep. Both are to serve with two: A is woken, and B's
waits until A gives a slot up.

Neighbours: `functions.controller.autoscaling` counts what there is and does what is allowed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SlotDemand:
    """Of one pool."""

    serving: int
    warm: int = 0
    least: int = 0  # of those that serve: its YAML's


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldSlots:
    """The engines that a pool has."""

    serving: int = 0  # that serve, start to, or are being woken for it
    loaded: int = 0  # warm, loaded and awake
    loading: int = 0  # warm and not yet loaded
    unheard: int = 0  # warm, and not known to be awake: as if it were, but for its promotion
    asleep: int = 0  # warm, without a slot
    spared: int = 0  # of those loaded or unheard: not ended for others
    stuck: int = 0  # of those loading or unheard: for longer than a start takes
    sleeps: bool = False  # its warm engines fall asleep once they are loaded

    @property
    def awake(self) -> int:
        return self.serving + self.loaded + self.loading + self.unheard


@dataclass(frozen=True, slots=True)
class SlotAllotment:
    """What a pool may have now."""

    serving: int
    warm: int
    wake: int = 0  # of its sleeping ones, those that may be woken


def free_slots(held: Mapping[str, HeldSlots], ending: int, slots: int) -> int:
    return max(0, slots - ending - sum(each.awake for each in held.values()))


def without_slot(held: Mapping[str, HeldSlots], ending: int, slots: int) -> dict[str, int]:
    """By pool, the sleeping replicas for which there is no slot to wake on: nobody can borrow them."""
    free = free_slots(held, ending, slots)
    return {name: max(0, each.asleep - free) for name, each in held.items()}


def allotted(
    demands: Mapping[str, SlotDemand], held: Mapping[str, HeldSlots], ending: int, slots: int
) -> dict[str, SlotAllotment]:
    """What each may have; `held` has every pool that `demands` has, `ending` engines keep slots beside those."""
    pools = {name: _Pool(demand, held[name]) for name, demand in sorted(demands.items())}
    free = free_slots(held, ending, slots)
    for pool in pools.values():
        free -= pool.keep(free)
    free = _let_serve(list(pools.values()), max(0, free))
    _give_up(list(pools.values()), slots - ending)
    free = _let_load(list(pools.values()), free)
    for pool in pools.values():
        free -= pool.wake_for_surplus(free)
    return {name: SlotAllotment(pool.serving, pool.warm, pool.woken) for name, pool in pools.items()}


@dataclass(slots=True)
class _Pool:
    """One pool while it is decided on; what takes slots returns how many."""

    demand: SlotDemand
    held: HeldSlots
    serving: int = 0
    loaded: int = 0  # warm from now on, as far as it has them: what serves too many is loaded and has its slot
    loading: int = 0
    unheard: int = 0
    asleep: int = 0
    spared: int = 0
    woken: int = 0
    started: int = 0  # that begin to load, to be warm

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
        """Warm ones that stay."""
        return self.loaded + self.loading + self.unheard + self.asleep

    @property
    def spare(self) -> int:
        """Warm ones that would give a slot up."""
        return max(0, self.loaded + self.loading + self.unheard - self.spared)

    @property
    def is_loading(self) -> bool:
        return self.loading + self.unheard > self.held.stuck

    @property
    def warm(self) -> int:
        return min(self.demand.warm, self.present) + self.started

    def keep(self, free: int) -> int:
        """Step 1: its YAML's, at once."""
        taken = 0
        while self.serving < min(self.demand.serving, self.demand.least):
            taken += self.promote(max(1, free - taken))
        return taken

    def can_promote(self, free: int) -> bool:
        return bool(self.lacks > 0 and (self.loaded or self.loading or free > 0))

    def promote(self, free: int) -> int:
        """One more serves, by the quickest way that `free` slots allow."""
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

    def give_up(self) -> None:
        if self.loading:
            self.loading -= 1
        elif self.unheard > self.spared:
            self.unheard -= 1
        else:
            self.loaded -= 1

    def start(self) -> None:
        self.started += 1

    def wake_for_surplus(self, free: int) -> int:
        """One that sleeps may have to serve in the place of one with a higher number, which ends."""
        if free > 0 and self.asleep and self.present > self.demand.warm and not self.lacks:
            self.woken += 1
            return 1
        return 0


def _let_serve(pools: Sequence[_Pool], free: int) -> int:
    """Step 2, one at a time; what is free then."""
    while able := [pool for pool in pools if pool.can_promote(free)]:
        free -= min(able, key=lambda pool: pool.serving / pool.demand.serving).promote(free)
    return free


def _give_up(pools: Sequence[_Pool], slots: int) -> None:
    """Step 3."""
    awake = sum(pool.serving + pool.spare for pool in pools)
    too_many = max(0, awake - slots) + sum(pool.lacks for pool in pools)
    for _ in range(too_many):
        most = max(pools, key=lambda pool: pool.spare, default=None)
        if most is None or not most.spare:
            return
        most.give_up()


def _let_load(pools: Sequence[_Pool], free: int) -> int:
    """Step 4; what is free then."""
    sleepers = [pool for pool in pools if pool.held.sleeps]
    is_loading = any(pool.is_loading for pool in sleepers)
    free -= _start(sleepers, 0 if is_loading else min(1, free))
    return free - _start([pool for pool in pools if not pool.held.sleeps], free)


def _start(pools: Sequence[_Pool], most: int) -> int:
    """As many as were started, one at a time to the pool with the smallest part of what it wants."""
    for started in range(most):
        lacking = [pool for pool in pools if pool.warm < pool.demand.warm]
        if not lacking:
            return started
        min(lacking, key=lambda pool: pool.warm / pool.demand.warm).start()
    return most
