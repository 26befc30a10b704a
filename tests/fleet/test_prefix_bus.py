"""News of prefixes and questions over a real Valkey."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from functions.fleet.bus import BusUnavailable
from functions.fleet.prefix_news import Ask, Delta, decode, decode_ask, encode, pack
from functions.fleet.valkey_bus import ValkeyBus
from tests.fleet.conftest import PASSWORD, free_port

pytestmark = pytest.mark.servers
WAIT_S = 60.0
NEWS = Delta("r-0", "base", 7, 1, 16, pack(range(10)))
ASK = Ask("base", "bloom", ("r-0",), everyone=True)


async def first(messages: AsyncIterator[bytes], send: Callable[[], Awaitable[None]]) -> bytes:
    """The first message of a subscription, which takes its time: it is sent until it is heard."""
    heard = asyncio.ensure_future(anext(messages))
    async with asyncio.timeout(WAIT_S):
        while not heard.done():
            await send()
            await asyncio.wait([heard], timeout=0.1)
    return heard.result()


async def test_news_and_questions_reach_the_other_side(valkey_port: int) -> None:
    url = f"valkey://127.0.0.1:{valkey_port}/0"
    async with ValkeyBus(url, password=PASSWORD) as agent, ValkeyBus(url, password=PASSWORD) as gateway:
        news = await first(gateway.prefixes(), lambda: agent.publish_prefixes(encode(NEWS)))
        assert decode(news) == NEWS
        ask = await first(agent.prefix_asks(), lambda: gateway.ask_prefixes(encode(ASK)))
        assert decode_ask(ask) == ASK


async def test_a_bus_that_is_away_says_so() -> None:
    async with ValkeyBus(f"valkey://127.0.0.1:{free_port()}/0") as bus:
        for send in (bus.publish_prefixes, bus.ask_prefixes):
            with pytest.raises(BusUnavailable):
                await send(b"")
        for messages in (bus.prefixes(), bus.prefix_asks()):
            with pytest.raises(BusUnavailable):
                await anext(messages)
