"""Drain: when an engine counts as empty, and which work a drain does not wait for."""

import asyncio

import pytest

from functions.replica.app import FETCHED_AFTER_S, HEARD_AFTER_S, Drain
from functions.replica.status import EngineLoad
from tests.replica.statuses import Clock, make_status


def test_empty_load_counts_only_after_gateways_know_of_the_drain() -> None:
    clock = Clock()
    status = make_status(clock=clock, load=EngineLoad(), load_read_s=clock.now_s)
    drain = Drain(status, timeout_s=60)
    assert not drain.done
    drain.start("test")
    assert status.draining
    clock.now_s += HEARD_AFTER_S + 1
    assert not drain.done  # requests sent before the drain may still arrive
    status.load_read_s = clock.now_s
    assert drain.done


def test_work_is_waited_for() -> None:
    clock = Clock()
    status = make_status(clock=clock, load=EngineLoad(running=1))
    drain = Drain(status, timeout_s=60)
    drain.start("test")
    clock.now_s += 10
    status.load_read_s = clock.now_s
    assert not drain.done
    status.load = EngineLoad(waiting=1)
    assert not drain.done
    status.load = EngineLoad()
    assert drain.done


@pytest.mark.parametrize(("hands_over", "is_done"), [(False, True), (True, False)])
def test_drain_waits_until_prefilled_blocks_are_fetched(hands_over: bool, is_done: bool) -> None:
    """Otherwise the decode engine waits up to half a minute for an engine that has ended."""
    clock = Clock()
    status = make_status(clock=clock, hands_over=hands_over, load=EngineLoad())
    drain = Drain(status, timeout_s=60)
    drain.start("test")
    clock.now_s += HEARD_AFTER_S
    status.worked_s = status.load_read_s = clock.now_s
    assert drain.done is is_done
    clock.now_s += FETCHED_AFTER_S
    status.load_read_s = clock.now_s
    assert drain.done


def test_drain_does_not_wait_for_a_missing_engine() -> None:
    for phase in ("dead", "starting"):
        drain = Drain(make_status(phase, load=EngineLoad(running=3)), timeout_s=60)
        drain.start("test")
        assert drain.done


def test_drain_does_not_wait_for_a_condemned_engine() -> None:
    """Requests of a hung engine never end; waiting for them would delay its restart by the pod's whole grace period."""
    status = make_status("hung", load=EngineLoad(running=3))
    drain = Drain(status, timeout_s=600)
    drain.start("test", engine_ends=True)
    assert not drain.done, "it may come back"
    status.condemned = "hung for 30 s: no token"
    assert drain.done


def test_the_drain_of_an_engine_that_ended_is_over_with_a_new_one() -> None:
    drain = Drain(make_status(), timeout_s=60)
    drain.start("its engine is to end", engine_ends=True)
    drain.engine_is_new()
    assert not drain.status.draining
    drain.engine_is_new()
    assert not drain.status.draining, "without a drain it is nothing"


@pytest.mark.parametrize("asked", ["before", "after", "stops"])
def test_new_engine_does_not_end_other_drains(asked: str) -> None:
    """A drain by an operator, or because the agent stops, continues when a new engine starts."""
    drain = Drain(make_status(), timeout_s=60)
    if asked == "before":
        drain.start("asked by POST /drain")
    drain.start("its engine is to end", engine_ends=True)
    if asked == "after":
        drain.start("asked by POST /drain")
    if asked == "stops":
        drain.start("asked by a signal", is_final=True)
    drain.engine_is_new()
    assert drain.status.draining


def test_beginning_again_does_not_restart_the_clock() -> None:
    clock = Clock()
    drain = Drain(make_status(clock=clock), timeout_s=60)
    drain.start("first")
    began_s = drain.began_s
    clock.now_s += 5
    drain.start("second")
    assert drain.began_s == began_s


async def test_waiting_ends_with_the_time_or_the_hurry() -> None:
    clock = Clock()
    drain = Drain(make_status(clock=clock, load=EngineLoad(running=1)), timeout_s=0.0)
    drain.start("test")
    assert not await drain.wait()
    hurried = asyncio.Event()
    hurried.set()
    drain.timeout_s = 1000.0
    assert not await drain.wait(until=hurried)
    assert not await drain.wait(0.0)
