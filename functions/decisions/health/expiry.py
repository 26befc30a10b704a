"""Expiry of replicas whose heartbeats do not arrive: which are gone, and which are only doubted.

A missing heartbeat means that the agent is gone, or that the bus does not deliver (agents cut off, publishing
rejected, a dead subscription); a bus that answers commands may still deliver nothing. Replicas that have been silent
for longer than the limit are

    gone      if they last reported draining or failure; others, if most of their pool and of the fleet report
    doubted   if most of the pool, or of the fleet, is silent with them: then the bus is the likely cause. A gateway
              tries a connection to each, and only a replica that accepts none is gone
    serving   if bytes of their engine came within SPOKE_FOR_S, whatever their heartbeats do

Worked example (test_worked_example_of_the_prologue): of four replicas one is silent: gone. With three silent, all
three are doubted; one that streams to this gateway needs no connection test.

Neighbours: `functions.fleet.view` tracks silent replicas; `functions.gateway.unheard` tests connections.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from functions.api.ids import PoolName, ReplicaId
from functions.decisions.routing.replicas import ReplicaPhase

SPOKE_FOR_S = 15.0
MOST_RATIO = 0.5
_PRESENT: frozenset[ReplicaPhase] = frozenset({"starting", "ready", "warm"})  # phases that must report regularly


@dataclass(frozen=True, slots=True)
class Silent:
    """A replica whose heartbeats have been missing for longer than the limit."""

    replica_id: ReplicaId
    pool: PoolName
    phase: ReplicaPhase  # phase of the last heartbeat
    spoke_s: float  # monotonic: last bytes of its engine


@dataclass(frozen=True, slots=True)
class Expiry:
    gone: frozenset[ReplicaId] = frozenset()
    doubted: frozenset[ReplicaId] = frozenset()
    serving: frozenset[ReplicaId] = frozenset()
    is_fleets: bool = False  # most of the fleet is silent: no heartbeats arrive at all


NOTHING = Expiry()


def is_present(phase: ReplicaPhase) -> bool:
    return phase in _PRESENT


def judge(silent: Sequence[Silent], heard: Mapping[PoolName, int], now_s: float) -> Expiry:
    """Divide the silent replicas into gone ones, ones that still serve, and doubted ones, if most of their pool or of
    the fleet is silent. `heard`: number of present replicas that report, by pool."""
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
