"""Accelerator slots in use on this machine, from replica allocations, heartbeats and processes. Pure.

That a warm replica sleeps is known from its heartbeat alone, never from its arguments: one that cannot, does not, or
was started again has a slot like any other. One that is not heard of (its agent begins, or the registry is away) is
taken to be awake, but may well sleep: it is promoted only on a free slot, and for a while (`lasting`) not ended for
others.
"""

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from typing import Literal

from functions.controller.autoscaling.allocation import Allocation, Sleepers, number_of
from functions.controller.autoscaling.signals import replicas_of
from functions.decisions.autoscaling.accelerator_slots import HeldSlots, SlotAllotment, SlotDemand
from functions.fleet.pool_board import PoolReport, ReplicaReport

# Stuck replicas: how long each warm replica of a sleeping pool has been as it is, and which are waited for no longer.
#
#     loaded, not asleep   FALLS_ASLEEP_S for that from when it was first seen so. Ended before, it would be loaded
#                          again
#     not yet loaded       for the first SURE_AFTER_S it is as if nothing were heard of it: an agent that is started
#                          again sends heartbeats before it has asked whether its engine sleeps. After LOADS_S it is
#                          stuck
#     not heard of         not ended for that, as an agent is back within seconds. After UNHEARD_S it is stuck
#
# One that is stuck gives way to those that lack a slot, and holds up nobody's loading. While the registry is away,
# nothing of this is asked, and nobody is stuck.
#
# Worked example (test_worked_example_of_a_silent_one): silent from 0 s on. At 119 s it is spared, at 120 s it
# gives way.


State = Literal["loaded", "loading", "unheard"]
Since = Mapping[tuple[str, int], tuple[State, float]]  # by pool and number

FALLS_ASLEEP_S = 60.0  # three until it begins, and what it takes to copy 64 GiB of weights to host memory
SURE_AFTER_S = 3.0
LOADS_S = 600.0  # the agents' own start limit
UNHEARD_S = 120.0  # many starts of an agent on a busy machine


@dataclass(frozen=True, slots=True)
class Lasting:
    """Of one pool, by number."""

    settling: frozenset[int] = frozenset()  # loaded, and about to sleep
    unsure: frozenset[int] = frozenset()  # that may be asleep, although they do not say so
    stuck: frozenset[int] = frozenset()


def since(before: Since, states: Mapping[str, Mapping[int, State]], now_s: float) -> Since:
    """From when on each is as it is; `states` is of pools whose warm ones sleep, without those that do."""
    newest: dict[tuple[str, int], tuple[State, float]] = {}
    for pool, numbers in states.items():
        for number, state in numbers.items():
            former = before.get((pool, number))
            newest[pool, number] = former if former is not None and former[0] == state else (state, now_s)
    return newest


def lasting(since_s: Since, pool: str, now_s: float) -> Lasting:
    mine = {number: (state, now_s - at_s) for (name, number), (state, at_s) in since_s.items() if name == pool}
    return Lasting(
        settling=frozenset(n for n, (state, s) in mine.items() if state == "loaded" and s < FALLS_ASLEEP_S),
        unsure=frozenset(n for n, (state, s) in mine.items() if state == "loading" and s < SURE_AFTER_S),
        stuck=frozenset(n for n, (state, s) in mine.items() if s >= _LIMIT_S[state] and state != "loaded"),
    )


_LIMIT_S = {"loaded": FALLS_ASLEEP_S, "loading": LOADS_S, "unheard": UNHEARD_S}


@dataclass(frozen=True, slots=True)
class SlotsInUse:
    """One pool's allocation, and what its replicas said last."""

    allocation: Allocation
    sleeps: bool = False  # it runs with --enable-sleep-mode
    heard: Mapping[int, ReplicaReport] = field(default_factory=dict)  # by number
    lasting: Lasting = field(default_factory=Lasting)

    @property
    def asleep(self) -> frozenset[int]:
        """Also while they are started or not well: what sleeps has no slot."""
        return frozenset(number for number in self.allocation.standby if self._sleeps(number))

    @property
    def awake(self) -> frozenset[int]:
        """Warm ones that are loaded and do not sleep."""
        heard = self.allocation.standby & self.heard.keys()
        return frozenset(n for n in heard if self.heard[n].phase == "warm") - self.asleep

    @property
    def unheard(self) -> frozenset[int]:
        """Warm ones that may be asleep."""
        return self.allocation.standby - self.heard.keys() | self.lasting.unsure if self.sleeps else frozenset()

    @property
    def states(self) -> dict[int, State]:
        """Of the warm ones that do not sleep."""
        return {number: self._state(number) for number in self.allocation.standby - self.asleep}

    def held(self) -> HeldSlots:
        stuck = self.lasting.stuck
        loading = self.allocation.standby - self.awake - self.asleep - self.unheard
        return HeldSlots(
            serving=self.allocation.serving,
            loaded=len(self.awake),
            loading=len(loading),
            unheard=len(self.unheard),
            asleep=len(self.asleep),
            spared=len(self.unheard - stuck) + len(self.awake & self.lasting.settling),
            stuck=len((loading | self.unheard) & stuck),
            sleeps=self.sleeps,
        )

    def sleepers(self, allotment: SlotAllotment) -> Sleepers:
        return Sleepers(self.asleep, allotment.wake, self.unheard)

    def _state(self, number: int) -> State:
        if number not in self.heard:
            return "unheard"
        return "loaded" if number in self.awake else "loading"

    def _sleeps(self, number: int) -> bool:
        heartbeat = self.heard.get(number)
        return self.sleeps and heartbeat is not None and heartbeat.asleep and heartbeat.phase != "dead"


def heard_of(report: PoolReport | None, pool: str) -> dict[int, ReplicaReport]:
    """The replicas of a pool that are not silent, by number."""
    replicas = replicas_of(report, pool) if report is not None else []
    return {number: replica for replica in replicas if (number := number_of(replica)) is not None}


def without_lost(allocation: Allocation, pool: str, engines: Set[str]) -> Allocation:
    """Without the warm ones at its end whose engines, by their replicas' ids, do not run."""
    while allocation.count - 1 in allocation.standby and f"{pool}-{allocation.count - 1}" not in engines:
        allocation = allocation.up_to(allocation.count - 1)
    return allocation


def ending(engines: Iterable[str], pools: Mapping[str, SlotsInUse]) -> int:
    """How many engines, by their replicas' ids, run that no allocation has: drained, or one more for a change."""
    wanted = {f"{name}-{number}" for name, pool in pools.items() for number in range(pool.allocation.count)}
    return sum(replica_id not in wanted for replica_id in engines)


def in_words(demand: SlotDemand, allotment: SlotAllotment, pool: SlotsInUse, slots: int) -> str:
    """Why a pool has less than it should; "" where it has not."""
    if allotment.serving < demand.serving and len(pool.asleep) > allotment.wake:
        return f"a warm replica sleeps, and is woken when one of the {_PLACES.format(slots)}"
    if allotment.serving == demand.serving and allotment.warm < demand.warm and pool.sleeps:
        return f"a warm replica is loaded, one at a time, when one of the {_PLACES.format(slots)}"
    if len(pool.allocation.standby) > allotment.warm and _is_kept_by_the_last(pool, allotment):
        return f"a warm replica too many sleeps, and is woken to end another when one of the {_PLACES.format(slots)}"
    if (allotment.serving, allotment.warm) == (demand.serving, demand.warm):
        return ""
    return f"this machine runs {slots} engines at most (SHOAL_MAX_ENGINES)"


def _is_kept_by_the_last(pool: SlotsInUse, allotment: SlotAllotment) -> bool:
    """An allocation has no gaps: the last one ends, which serves, and nobody awake is there to serve in its place."""
    last = pool.allocation.count - 1
    return last not in pool.allocation.standby and bool(pool.asleep) and not pool.awake and not allotment.wake


_PLACES = "{} engines that may be awake on this machine makes room (SHOAL_MAX_ENGINES)"
