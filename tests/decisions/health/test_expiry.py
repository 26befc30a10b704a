"""Expiry of silent replicas: a single one is gone, most of a pool at once is doubted, and one that streams is in
use.
"""

import pytest

from functions.api.ids import PoolName, ReplicaId
from functions.decisions.health.expiry import NOTHING, SPOKE_FOR_S, Silent, judge
from functions.decisions.routing.replicas import ReplicaPhase

BASE, OTHER = PoolName("base"), PoolName("other")
NEVER_S = float("-inf")


def silent(
    *names: str, pool: PoolName = BASE, phase: ReplicaPhase = "ready", spoke_s: float = NEVER_S
) -> tuple[Silent, ...]:
    return tuple(Silent(ReplicaId(name), pool, phase, spoke_s) for name in names)


def test_worked_example_of_the_prologue() -> None:
    alone = judge(silent("r0"), {BASE: 3}, 100.0)
    assert (alone.gone, alone.doubted, alone.is_fleets) == ({"r0"}, frozenset(), False)
    most = judge((*silent("r0", "r1"), *silent("r2", spoke_s=99.0)), {BASE: 1}, 100.0)
    assert (most.gone, most.doubted, most.serving, most.is_fleets) == (frozenset(), {"r0", "r1"}, {"r2"}, True)


def test_half_of_a_pool_is_not_most_of_it() -> None:
    assert judge(silent("r0"), {BASE: 1}, 100.0).gone == {"r0"}


def test_wholly_silent_pool_is_doubted_while_the_fleet_is_heard() -> None:
    judged = judge(silent("r0", "r1"), {OTHER: 8}, 100.0)
    assert (judged.doubted, judged.is_fleets) == ({"r0", "r1"}, False)


@pytest.mark.parametrize("phase", ["draining", "hung", "dead"])
def test_draining_replica_is_gone_and_not_counted(phase: ReplicaPhase) -> None:
    judged = judge((*silent("r0", "r1", "r2", phase=phase), *silent("r3")), {BASE: 1}, 100.0)
    assert judged.gone == {"r0", "r1", "r2", "r3"} and not judged.is_fleets


def test_old_stream_data_does_not_keep_a_replica() -> None:
    assert judge(silent("r0", spoke_s=100.0 - SPOKE_FOR_S), {BASE: 3}, 100.0).serving == {"r0"}
    assert judge(silent("r0", spoke_s=99.9 - SPOKE_FOR_S), {BASE: 3}, 100.0).gone == {"r0"}


def test_no_silent_replica_gives_no_verdict() -> None:
    assert judge((), {BASE: 3}, 100.0) == NOTHING
