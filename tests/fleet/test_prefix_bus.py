"""Prefix updates and prefix requests over a real Valkey."""

import pytest

from functions.fleet.bus import BusUnavailable
from functions.fleet.prefix_updates import Delta, PrefixRequest, decode, decode_request, encode, pack
from functions.fleet.valkey_bus import ValkeyBus
from tests.fleet.conftest import PASSWORD
from tests.fleet.listening import first
from tests.ports import free_port

pytestmark = pytest.mark.servers
NEWS = Delta("r-0", "base", 7, 1, 16, pack(range(10)))
ASK = PrefixRequest("base", "bloom", ("r-0",), everyone=True)


async def test_prefix_updates_and_requests_are_delivered(valkey_port: int) -> None:
    url = f"valkey://127.0.0.1:{valkey_port}/0"
    async with ValkeyBus(url, password=PASSWORD) as agent, ValkeyBus(url, password=PASSWORD) as gateway:
        news = await first(gateway.prefixes(), lambda: agent.publish_prefixes(encode(NEWS)))
        assert decode(news) == NEWS
        ask = await first(agent.prefix_requests(), lambda: gateway.publish_prefix_request(encode(ASK)))
        assert decode_request(ask) == ASK


async def test_a_bus_that_is_away_says_so() -> None:
    async with ValkeyBus(f"valkey://127.0.0.1:{free_port()}/0") as bus:
        for send in (bus.publish_prefixes, bus.publish_prefix_request):
            with pytest.raises(BusUnavailable):
                await send(b"")
        for messages in (bus.prefixes(), bus.prefix_requests()):
            with pytest.raises(BusUnavailable):
                await anext(messages)
