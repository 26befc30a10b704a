"""Limits that three gateways share while the bus answers late: in virtual time, with rounds and calls as in production.

Here the credit for a late bus would admit requests beyond a drained limit: 75 of 60, 375 of 300.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from random import Random

import pytest

from tests.drills.virtual.loop import VirtualLoop
from tests.gateway.quota_rig import Shared

GATEWAYS, RATE_PER_S, WINDOW_S = 3, 10.0, 60.0
PROMPT_S = 0.001
_ROUND_S = 0.25


@pytest.fixture
def loop() -> Iterator[VirtualLoop]:
    loop = VirtualLoop()
    yield loop
    loop.close()


@pytest.mark.parametrize("per_minute", [60, 300])
@pytest.mark.parametrize("lag_s", [0.04, 0.3, 0.9])
def test_drained_limit_admits_its_inflow_with_a_slow_bus(loop: VirtualLoop, per_minute: int, lag_s: float) -> None:
    passed = loop.run_until_complete(_window(loop, per_minute, lag_s, drained=True))
    assert 0.95 * per_minute - 1 <= passed <= per_minute + max(2.0, 0.02 * per_minute)


def test_slow_bus_rejects_nothing_while_enough_is_left(loop: VirtualLoop) -> None:
    """The tenant is new to gateways whose bus is late: its first requests are admitted on credit."""
    asked = WINDOW_S * RATE_PER_S
    passed = loop.run_until_complete(_window(loop, 6 * int(asked), 0.04, drained=False))
    assert passed == asked


async def _window(loop: VirtualLoop, per_minute: int, lag_s: float, *, drained: bool) -> int:
    """Return how many requests of a minute were admitted; the bus is late in the second half of it."""
    shared = Shared(GATEWAYS, now=loop.time, requests_per_minute=per_minute)
    shared.broker.lag_s = PROMPT_S
    rng = Random(per_minute)
    rounds = [asyncio.create_task(_rounds(leases.run, rng.random())) for leases in shared.leases]
    await asyncio.sleep(2 * _ROUND_S + 1.0)
    while drained and await _passed_at_once(shared):
        pass
    began_s, asked = loop.time(), []
    for number in range(int(WINDOW_S * RATE_PER_S)):
        shared.broker.lag_s = lag_s if loop.time() - began_s > WINDOW_S / 2 or not drained else PROMPT_S
        asked.append(asyncio.create_task(_passes(shared, number % GATEWAYS)))
        await asyncio.sleep(1.0 / RATE_PER_S)
    passed = sum(await asyncio.gather(*asked))
    await asyncio.sleep(1.0)  # calls under way
    for task in rounds:
        task.cancel()
    await asyncio.gather(*rounds, return_exceptions=True)
    return passed


async def _rounds(run: Callable[[], Awaitable[None]], part: float) -> None:
    await asyncio.sleep(part * _ROUND_S)
    await run()


async def _passed_at_once(shared: Shared) -> int:
    return sum(await asyncio.gather(*(_passes(shared, number % GATEWAYS) for number in range(30))))


async def _passes(shared: Shared, gateway: int) -> bool:
    entry = await shared.enters(gateway, 1)
    if entry is None:
        return False
    shared.ends(entry, 1)
    return True
