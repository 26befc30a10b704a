"""News of prefixes from the bus, and the questions that keep them coming. Loops that end by raising, as `feeds`' do."""

import asyncio
from typing import TYPE_CHECKING

from functions.fleet.bus import PrefixBus
from functions.fleet.prefix_news import ASK_INTERVAL_S, encode
from functions.gateway.services import Services

if TYPE_CHECKING:
    from functions.gateway.prefix.exact_prefixes import ExactPrefixes

_SWEEP_INTERVAL_S = 0.25
_FIRST_ASK_S = 0.5


async def follow_prefixes(exact: "ExactPrefixes", bus: PrefixBus) -> None:
    """What agents tell, until the bus is lost: BusUnavailable. What is missed then shows in the sequence numbers."""
    async for message in bus.prefixes():
        exact.heard(message)


async def ask_for_prefixes(services: Services, exact: "ExactPrefixes", bus: PrefixBus) -> None:
    """Each few seconds, what is wanted of which pool, by the routing policies in force; the first time soon."""
    await asyncio.sleep(_FIRST_ASK_S)  # for the subscription to be there before the answers are
    while True:
        if services.state.catalogue is not None:
            for ask in exact.asks(services.state.catalogue):
                await bus.ask_prefixes(encode(ask))
        await asyncio.sleep(ASK_INTERVAL_S if services.state.catalogue is not None else _FIRST_ASK_S)


async def sweep_prefixes(exact: "ExactPrefixes") -> None:
    while True:
        await asyncio.sleep(_SWEEP_INTERVAL_S)
        exact.sweep()
