"""Receive the first message of a subscription, which becomes active some time after the call."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

WAIT_S = 60.0


async def first(messages: AsyncIterator[bytes], send: Callable[[], Awaitable[None]]) -> bytes:
    """Send until a message is received, and return it; surplus copies may arrive later."""
    heard = asyncio.ensure_future(anext(messages))
    async with asyncio.timeout(WAIT_S):
        while not heard.done():
            await send()
            await asyncio.wait([heard], timeout=0.1)
    return heard.result()
