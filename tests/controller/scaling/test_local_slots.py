"""Passes on one machine whose warm engines sleep: slots, and replicas without a recent heartbeat."""

import asyncio
import itertools

import pytest

from functions.controller.autoscaling import slots_in_use as seating
from functions.controller.autoscaling.allocation import Allocation
from functions.controller.local.layout import StateLayout
from functions.controller.local.pools import Pool, Target
from functions.fleet.pool_board import PoolReport
from tests.controller.scaling.builders import POOL, replica, report
from tests.controller.scaling.test_local import Machine

SLEEPS = ("--enable-sleep-mode",)
HEARTBEATS = (replica(0), replica(1))
SEVERAL = 3


async def passes(machine: Machine, heard: PoolReport | None) -> tuple[int, int, str]:
    """Run some passes with that report; return the serving and warm counts, and the reason for not having more."""
    machine.source.heard = heard
    begun = machine.source.asked
    await machine.passes(lambda: machine.source.asked > begun + SEVERAL)
    return machine.shown.serving, machine.shown.warm, machine.shown.held


async def test_sleeping_warm_replica_frees_its_slot_for_the_next(layout: StateLayout) -> None:
    machine = Machine(layout, Allocation(2), Target("sim"), slots=3, args=SLEEPS, warm=2)
    serving, warm, held = await passes(machine, report(*HEARTBEATS))
    assert (serving, warm) == (2, 1) and held.startswith("warm replicas are loaded one at a time")
    assert (await passes(machine, report(*HEARTBEATS, replica(2, "warm"))))[1] == 1, "it is awake, on the last slot"
    heartbeats = (*HEARTBEATS, replica(2, "warm", asleep=True))
    assert await passes(machine, report(*heartbeats)) == (2, 2, "")


async def test_awake_warm_replica_holds_its_slot(layout: StateLayout) -> None:
    machine = Machine(layout, Allocation(2), Target("sim"), slots=3, warm=2)
    serving, warm, held = await passes(machine, report(*HEARTBEATS, replica(2, "warm", asleep=True)))
    assert (serving, warm) == (2, 1) and held.startswith("this machine runs 3 engines at most")


async def test_sleeping_replicas_stay_without_heartbeats_for_a_while(layout: StateLayout) -> None:
    machine = Machine(layout, Allocation(4, frozenset({2, 3})), Target("sim"), slots=3, args=SLEEPS, warm=2)
    assert (await passes(machine, None))[:2] == (2, 2)
    heartbeats = [replica(number, "warm", asleep=True) for number in (2, 3)]
    assert await passes(machine, report(*HEARTBEATS, *heartbeats)) == (2, 2, "")


async def test_operator_size_wakes_replicas_beyond_the_slots(layout: StateLayout) -> None:
    machine = Machine(layout, Allocation(3, frozenset({2})), Target("sim", 3), slots=2, args=SLEEPS)
    assert (await passes(machine, report(*HEARTBEATS, replica(2, "warm", asleep=True))))[:2] == (3, 0)


async def test_push_during_a_pass_waits_for_the_next_one(layout: StateLayout) -> None:
    machine = Machine(layout, Allocation(2), Target("sim"), slots=9, args=SLEEPS)
    machine.source.heard = report(*HEARTBEATS)
    one = machine.reconciler.declared
    running = asyncio.get_running_loop().create_task(machine.scaling.run())
    async with asyncio.timeout(60.0):
        for number in itertools.count():  # another pool each time, so that no two passes find the same
            machine.reconciler.set_desired("main@2", (*one, Pool(f"p{number}", 1, "m")))
            await asyncio.sleep(0)
            assert not running.done(), running.exception()
            if machine.source.asked > 1:
                break
    running.cancel()
    await asyncio.wait([running])


def test_lost_sleepers_are_not_restarted_all_at_once(layout: StateLayout) -> None:
    machine = Machine(layout, Allocation(4, frozenset({2, 3})), Target("sim"), slots=3, args=SLEEPS)
    mark = layout.standby_file(f"{POOL}-2")
    mark.parent.mkdir(parents=True)
    mark.touch()
    machine.scaling.restore_sizes()
    assert not mark.exists(), "who comes for the time of a change does not begin warm"
    assert [pool.replicas for pool in machine.reconciler.wanted.pools] == [2]
    assert (machine.shown.serving, machine.shown.warm) == (2, 0)


def test_non_sleeping_replicas_are_restored_completely(layout: StateLayout) -> None:
    machine = Machine(layout, Allocation(4, frozenset({2, 3})), Target("sim"), slots=4)
    machine.scaling.restore_sizes()
    assert [pool.replicas for pool in machine.reconciler.wanted.pools] == [4]


async def test_replica_with_a_restarting_agent_is_not_ended_for_another(
    layout: StateLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seating, "SURE_AFTER_S", 600.0)
    machine = Machine(layout, Allocation(3, frozenset({2})), Target("sim"), Pool("other", 2, "m"), slots=4, args=SLEEPS)
    begun = report(*HEARTBEATS, replica(2, "starting"))
    assert (await passes(machine, begun))[:2] == (2, 1), "it may have slept, and says so with the next heartbeat"
