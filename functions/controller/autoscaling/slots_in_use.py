"""Accelerator slots in use on this machine, from replica allocations, heartbeats and processes. Pure.

Only a heartbeat shows that a warm replica sleeps, never its arguments: a replica that cannot sleep, does not sleep or
was restarted has a slot like any other. A replica without heartbeats (its agent starts, or the registry is away)
counts as awake but may be asleep: it is promoted only onto a free slot, and for a while (`lasting`) not ended for
others.
"""

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from typing import Literal

from functions.controller.autoscaling.allocation import Allocation, Sleepers, number_of
from functions.controller.autoscaling.signals import replicas_of
from functions.decisions.autoscaling.accelerator_slots import HeldSlots, SlotAllotment, SlotDemand
from functions.fleet.pool_board import PoolReport, ReplicaReport

# Stuck replicas: the time that each warm replica of a sleeping pool has been in its state, and which are too late.
#
#     loaded, not asleep   FALLS_ASLEEP_S after it was first seen so. If it were ended earlier, it would be loaded again
#     not yet loaded       for the first SURE_AFTER_S it counts as unheard: a restarted agent sends heartbeats before it
#                          has checked whether its engine sleeps. After LOADS_S it is stuck
#     unheard              not ended because of that: an agent is back within seconds. After UNHEARD_S it is stuck
#
# A stuck replica gives way to pools that lack a slot, and does not delay the loading of another. While the registry is
# away, none of this is evaluated and no replica is stuck.
#
# Worked example (test_worked_example_of_a_silent_replica): silent from 0 s on. At 119 s it is spared, at 120 s it gives
# way.


State = Literal["loaded", "loading", "unheard"]
Since = Mapping[tuple[str, int], tuple[State, float]]  # by pool and number

FALLS_ASLEEP_S = 60.0  # 3 s until it begins, and the time to copy 64 GiB of weights to host memory
SURE_AFTER_S = 3.0
LOADS_S = 600.0  # the agents' own start limit
UNHEARD_S = 120.0  # time for many starts of an agent on a busy machine


@dataclass(frozen=True, slots=True)
class Lasting:
    """Numbers of one pool's warm replicas, by how long they have been in their state."""

    settling: frozenset[int] = frozenset()  # loaded, and about to sleep
    unsure: frozenset[int] = frozenset()  # may be asleep, although their heartbeats do not show it
    stuck: frozenset[int] = frozenset()


def update_since(before: Since, states: Mapping[str, Mapping[int, State]], now_s: float) -> Since:
    """Return since when each replica is in its state. `states` covers pools whose warm replicas sleep, without
    sleeping ones."""
    newest: dict[tuple[str, int], tuple[State, float]] = {}
    for pool, numbers in states.items():
        for number, state in numbers.items():
            former = before.get((pool, number))
            newest[pool, number] = former if former is not None and former[0] == state else (state, now_s)
    return newest


def lasting_states(since_s: Since, pool: str, now_s: float) -> Lasting:
    mine = {number: (state, now_s - at_s) for (name, number), (state, at_s) in since_s.items() if name == pool}
    return Lasting(
        settling=frozenset(n for n, (state, s) in mine.items() if state == "loaded" and s < FALLS_ASLEEP_S),
        unsure=frozenset(n for n, (state, s) in mine.items() if state == "loading" and s < SURE_AFTER_S),
        stuck=frozenset(n for n, (state, s) in mine.items() if s >= _LIMIT_S[state] and state != "loaded"),
    )


_LIMIT_S = {"loaded": FALLS_ASLEEP_S, "loading": LOADS_S, "unheard": UNHEARD_S}


@dataclass(frozen=True, slots=True)
class SlotsInUse:
    """Allocation of one pool, and the last reports of its replicas."""

    allocation: Allocation
    sleeps: bool = False  # its engines run with --enable-sleep-mode
    heard: Mapping[int, ReplicaReport] = field(default_factory=dict)  # by number
    lasting: Lasting = field(default_factory=Lasting)

    @property
    def asleep(self) -> frozenset[int]:
        """Numbers of the sleeping warm replicas, also while they start or are unwell: they hold no slot."""
        return frozenset(number for number in self.allocation.standby if self._sleeps(number))

    @property
    def awake(self) -> frozenset[int]:
        """Numbers of the warm replicas that report that they are loaded and do not sleep."""
        heard = self.allocation.standby & self.heard.keys()
        return frozenset(n for n in heard if self.heard[n].phase == "warm") - self.asleep

    @property
    def unheard(self) -> frozenset[int]:
        """Warm replicas that may be asleep, because they send no heartbeats or have only recently begun to report that
        they load; empty if the pool's warm replicas do not sleep."""
        return self.allocation.standby - self.heard.keys() | self.lasting.unsure if self.sleeps else frozenset()

    @property
    def states(self) -> dict[int, State]:
        """States by number of the warm replicas that do not sleep."""
        return {number: self._state(number) for number in self.allocation.standby - self.asleep}

    def held_slots(self) -> HeldSlots:
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


def replicas_by_number(report: PoolReport | None, pool: str) -> dict[int, ReplicaReport]:
    """Return the pool's replicas that are neither silent nor suspected, by the number in their id; empty without a
    report."""
    replicas = replicas_of(report, pool) if report is not None else []
    return {number: replica for replica in replicas if (number := number_of(replica)) is not None}


def without_lost(allocation: Allocation, pool: str, engines: Set[str]) -> Allocation:
    """Return the allocation without the warm replicas at its end whose engines do not run; `engines` has the ids of
    replicas that run."""
    while allocation.count - 1 in allocation.standby and f"{pool}-{allocation.count - 1}" not in engines:
        allocation = allocation.up_to(allocation.count - 1)
    return allocation


def count_ending_engines(engines: Iterable[str], pools: Mapping[str, SlotsInUse]) -> int:
    """Count the running engines that no allocation has: drained ones, or the extra replica of a change."""
    wanted = {f"{name}-{number}" for name, pool in pools.items() for number in range(pool.allocation.count)}
    return sum(replica_id not in wanted for replica_id in engines)


def shortage_text(demand: SlotDemand, allotment: SlotAllotment, pool: SlotsInUse, slots: int) -> str:
    """Return why a pool has fewer replicas than it should; "" if it has not."""
    if allotment.serving < demand.serving and len(pool.asleep) > allotment.wake:
        return f"a warm replica stays asleep until {_PLACES.format(slots)}"
    if allotment.serving == demand.serving and allotment.warm < demand.warm and pool.sleeps:
        return f"warm replicas are loaded one at a time; the next waits until {_PLACES.format(slots)}"
    if len(pool.allocation.standby) > allotment.warm and _is_kept_by_the_last(pool, allotment):
        return f"one warm replica too many: it sleeps, and replaces the last replica only when {_PLACES.format(slots)}"
    if (allotment.serving, allotment.warm) == (demand.serving, demand.warm):
        return ""
    return f"this machine runs {slots} engines at most (SHOAL_MAX_ENGINES)"


def _is_kept_by_the_last(pool: SlotsInUse, allotment: SlotAllotment) -> bool:
    """Return True if the last replica cannot end: it serves, and no awake replica could serve in its place."""
    last = pool.allocation.count - 1
    return last not in pool.allocation.standby and bool(pool.asleep) and not pool.awake and not allotment.wake


_PLACES = "one of this machine's {} slots for awake engines is free (SHOAL_MAX_ENGINES)"
