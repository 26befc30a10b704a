"""Expiry of replicas whose heartbeats do not come: who is gone, and of whom that is not said yet.

A heartbeat that does not come says that its agent is gone, or that the bus does not bring it (agents cut off from it,
publishing that is refused, a subscription that died), and a bus that answers whoever asks it may bring nothing. So of
those that have been silent for longer than the limit

    gone      who said that it drains or is ill; and the others, where most of their pool and of the fleet are heard
    doubted   where most of its pool, or of the fleet, is silent with it: that is the bus's fault more often than
              everybody's. A gateway asks each whether it takes connections, and only one that does not is gone
    serving   whose bytes came within SPOKE_FOR_S, whatever its heartbeats do

Worked example (test_worked_example_of_the_prologue): of four replicas one is silent: gone. With three silent all three
are doubted; one of them that streams to us is not even asked.

Neighbours: `functions.fleet.view` keeps who is silent; `functions.gateway.unheard` asks.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from functions.api.ids import PoolName, ReplicaId
from functions.decisions.routing.replicas import ReplicaPhase

SPOKE_FOR_S = 15.0
MOST_RATIO = 0.5
_PRESENT: frozenset[ReplicaPhase] = frozenset({"starting", "ready", "warm"})  # who ought to go on saying so


@dataclass(frozen=True, slots=True)
class Silent:
    """One whose heartbeats have not come for longer than the limit."""

    replica_id: ReplicaId
    pool: PoolName
    phase: ReplicaPhase  # heard last
    spoke_s: float  # monotonic: when bytes of its engine came last


@dataclass(frozen=True, slots=True)
class Expiry:
    gone: frozenset[ReplicaId] = frozenset()
    doubted: frozenset[ReplicaId] = frozenset()
    serving: frozenset[ReplicaId] = frozenset()
    is_fleets: bool = False  # most of the fleet is silent: heartbeats as such do not come


NOTHING = Expiry()


def is_present(phase: ReplicaPhase) -> bool:
    return phase in _PRESENT


def judge(silent: Sequence[Silent], heard: Mapping[PoolName, int], now_s: float) -> Expiry:
    """`heard`: of each pool, how many that are present are not silent."""
    present = [each for each in silent if is_present(each.phase)]
    by_pool = Counter(each.pool for each in present)
    is_fleets = _is_most(len(present), sum(heard.values()))
    gone, doubted, serving = set[ReplicaId](), set[ReplicaId](), set[ReplicaId]()
    for each in silent:
        if now_s - each.spoke_s <= SPOKE_FOR_S:
            serving.add(each.replica_id)
        elif is_present(each.phase) and (is_fleets or _is_most(by_pool[each.pool], heard.get(each.pool, 0))):
            doubted.add(each.replica_id)
        else:
            gone.add(each.replica_id)
    return Expiry(frozenset(gone), frozenset(doubted), frozenset(serving), is_fleets)


def _is_most(silent: int, heard: int) -> bool:
    return silent > MOST_RATIO * (silent + heard)
