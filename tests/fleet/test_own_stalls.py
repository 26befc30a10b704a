"""A loop that stalled checks a second time before it reports that peers are late."""

import asyncio
import time

import pytest

from functions.fleet import own_stalls
from functions.fleet.own_stalls import StallGuard

_WAIT_S, _STILL_S = 0.2, 0.4


def test_worked_example_of_the_prologue() -> None:
    rounds = StallGuard(0.25, 9.5)
    assert [rounds.is_on_time(at_s) for at_s in (9.75, 10.0, 41.0, 41.25, 41.5)] == [True, True, False, True, True]


def test_always_late_loop_checks_every_other_round() -> None:
    rounds = StallGuard(0.25, 0.0)
    assert [rounds.is_on_time(at_s) for at_s in (5.0, 10.0, 15.0, 20.0)] == [False, True, False, True]


def test_stall_after_a_small_delay_is_detected() -> None:
    rounds = StallGuard(0.25, 0.0)
    assert [rounds.is_on_time(at_s) for at_s in (0.6, 31.0, 31.25)] == [False, False, True]


def test_slightly_late_round_is_on_time() -> None:
    rounds = StallGuard(0.25, 0.0)
    assert [rounds.is_on_time(at_s) for at_s in (0.25, 0.65, 1.15)] == [True, True, True]


async def test_late_timeout_waits_for_a_second_look() -> None:
    """The event arrives during the stall, but the timer runs before the event is seen."""
    come = asyncio.Event()
    asyncio.get_running_loop().call_later(_WAIT_S + 0.1, come.set)
    async with own_stalls.timeout(_WAIT_S):
        time.sleep(_STILL_S)  # real time, like the loop's clock
        await asyncio.sleep(0)
        await come.wait()


@pytest.mark.parametrize("still_s", [0.0, _STILL_S])
async def test_timeout_expires_without_the_event(still_s: float) -> None:
    began_s = time.monotonic()
    with pytest.raises(TimeoutError):
        async with own_stalls.timeout(_WAIT_S):
            time.sleep(still_s)
            await asyncio.Event().wait()
    assert time.monotonic() - began_s >= (still_s + own_stalls.SECOND_LOOK_S if still_s else _WAIT_S)


async def test_a_wait_that_ended_leaves_no_timer() -> None:
    async with own_stalls.timeout(0.05):
        pass
    await asyncio.sleep(0.1)  # would raise here


async def test_cancelled_wait_raises_no_timeout() -> None:
    async def waits() -> None:
        async with own_stalls.timeout(60.0):
            await asyncio.Event().wait()

    task = asyncio.get_running_loop().create_task(waits())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
