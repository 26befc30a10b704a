"""Hearing the first message of a subscription, which comes about some time after it was asked for."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

WAIT_S = 60.0


async def first(messages: AsyncIterator[bytes], send: Callable[[], Awaitable[None]]) -> bytes:
    """It is sent until it is heard; what was sent once too often may be heard after it."""
    heard = asyncio.ensure_future(anext(messages))
    async with asyncio.timeout(WAIT_S):
        while not heard.done():
            await send()
            await asyncio.wait([heard], timeout=0.1)
    return heard.result()
