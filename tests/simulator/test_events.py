"""Virtual time: events at equal times run in the order they were scheduled, and none after a stop."""

import asyncio
import gc

import pytest

from functions.simulator.events import Events
from functions.simulator.virtual_loop import VirtualLoop, seldom_collected


def test_events_at_equal_times_run_in_scheduling_order() -> None:
    events, seen = Events(), []
    for number in (1, 2, 3):
        events.at(5.0, lambda number=number: seen.append(number))
    events.at(1.0, lambda: seen.append(0))
    events.at(6.0, events.stop)
    events.run_until_stopped()
    assert seen == [0, 1, 2, 3]
    assert events.now_s == 6.0
    assert events.happened == 5


def test_event_scheduled_in_the_past_runs_now() -> None:
    events, seen = Events(), []
    events.at(5.0, lambda: events.at(1.0, lambda: seen.append(events.now_s)))
    events.at(7.0, events.stop)
    events.run_until_stopped()
    assert seen == [5.0]


def test_nothing_happens_after_stop() -> None:
    events, seen = Events(), []
    events.at(1.0, events.stop)
    events.at(2.0, lambda: seen.append(2))
    events.run_until_stopped()
    assert not seen
    assert events.now_s == 1.0


def test_run_without_events_raises() -> None:
    with pytest.raises(TimeoutError, match="the run was not stopped"):
        Events().run_until_stopped()
    with pytest.raises(TimeoutError, match="no event is left"):
        Events().run(lambda: False, 10.0)


def test_garbage_collection_settings_are_restored_after_a_run() -> None:
    usual = gc.get_threshold()
    with pytest.raises(ValueError, match="a run that fails"), seldom_collected():
        assert gc.get_threshold()[0] > 10 * usual[0]
        raise ValueError("a run that fails")
    assert gc.get_threshold() == usual


async def waits(ended: list[str]) -> None:
    try:
        await asyncio.sleep(3600.0)
    finally:
        ended.append("cancelled")


def test_tasks_are_cancelled_when_a_simulation_fails() -> None:
    """Such tasks were once left pending, and a later test logged them when they were collected."""
    loop, ended = VirtualLoop(Events()), list[str]()

    with pytest.raises(ZeroDivisionError), loop.running():
        loop.create_task(waits(ended))
        loop.call_later(1.0, lambda: 1 // 0)
        loop._events.run_all()
    assert ended == ["cancelled"]


def test_task_started_by_a_cancelled_task_ends_too() -> None:
    """Example: when a request is cut off, a gateway tells the replica to stop, in a separate task."""
    loop, ended = VirtualLoop(Events()), list[str]()

    async def tells() -> None:
        try:
            await loop.create_future()
        finally:
            ended.append("told")

    async def waits() -> None:
        try:
            await asyncio.sleep(3600.0)
        finally:
            loop.create_task(tells())
            await asyncio.sleep(0.0)
            ended.append("cancelled")

    with loop.running():
        loop.create_task(waits())
        loop._events.run(lambda: loop._events.happened == 1, 1.0)
    assert not loop._tasks
    assert ended == ["cancelled", "told"]


def test_task_that_fails_on_cancellation_does_not_block_others() -> None:
    loop, ended = VirtualLoop(Events()), list[str]()

    with pytest.raises(ZeroDivisionError), loop.running():
        loop.create_task(waits(ended)).add_done_callback(lambda task: 1 // 0)
        loop.create_task(waits(ended))
        loop._events.run(lambda: loop._events.happened == 2, 1.0)
    assert ended == ["cancelled", "cancelled"]
