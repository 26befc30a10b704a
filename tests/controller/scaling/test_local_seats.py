"""Passes on one machine whose pool's warm engines sleep: who waits for a seat, and what is known of it."""

from functions.controller.local.layout import StateLayout
from functions.controller.local.target import Target
from functions.controller.scaling.roster import Roster
from functions.fleet.pool_report import PoolReport
from tests.controller.scaling.builders import replica, report
from tests.controller.scaling.test_local import Machine

SLEEPS = ("--enable-sleep-mode",)
BEATS = (replica(0), replica(1))
SEVERAL = 3


async def passes(machine: Machine, heard: PoolReport | None) -> tuple[int, int, str]:
    """Some with that report; how many serve and are warm then, and why not more."""
    machine.source.heard = heard
    begun = machine.source.asked
    await machine.passes(lambda: machine.source.asked > begun + SEVERAL)
    return machine.shown.serving, machine.shown.warm, machine.shown.held


async def test_a_warm_one_that_sleeps_leaves_its_seat_to_the_next_that_is_loaded(layout: StateLayout) -> None:
    machine = Machine(layout, Roster(2), Target("sim"), seats=3, args=SLEEPS, warm=2)
    serving, warm, held = await passes(machine, report(*BEATS))
    assert (serving, warm) == (2, 1) and held.startswith("a warm replica is loaded, one at a time")
    assert (await passes(machine, report(*BEATS, replica(2, "warm"))))[1] == 1, "it is awake, on the last seat"
    beats = (*BEATS, replica(2, "warm", asleep=True))
    assert await passes(machine, report(*beats)) == (2, 2, "")


async def test_what_does_not_sleep_has_its_seat(layout: StateLayout) -> None:
    machine = Machine(layout, Roster(2), Target("sim"), seats=3, warm=2)
    serving, warm, held = await passes(machine, report(*BEATS, replica(2, "warm", asleep=True)))
    assert (serving, warm) == (2, 1) and held.startswith("this machine runs 3 engines at most")


async def test_what_sleeps_stays_though_nothing_is_heard_of_it_for_a_while(layout: StateLayout) -> None:
    machine = Machine(layout, Roster(4, frozenset({2, 3})), Target("sim"), seats=3, args=SLEEPS, warm=2)
    assert (await passes(machine, None))[:2] == (2, 2)
    beats = [replica(number, "warm", asleep=True) for number in (2, 3)]
    assert await passes(machine, report(*BEATS, *beats)) == (2, 2, "")


async def test_what_an_operator_asks_for_is_woken_whatever_the_seats_are(layout: StateLayout) -> None:
    machine = Machine(layout, Roster(3, frozenset({2})), Target("sim", 3), seats=2, args=SLEEPS)
    assert (await passes(machine, report(*BEATS, replica(2, "warm", asleep=True))))[:2] == (3, 0)
