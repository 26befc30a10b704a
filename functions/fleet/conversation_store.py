"""Where conversations lie between two requests: Valkey, each under a key of its own that expires.

Values are opaque here (the gateway seals them). A value is replaced only where it is still the one that was read, so
that of two requests in one session at a time neither undoes the other unseen: the later one is told.

Its connections are its own: conversations never wait behind heartbeats, nor these behind them.
"""

from math import ceil
from typing import Protocol

import valkey.asyncio as valkey
from valkey.exceptions import ValkeyError, WatchError

from functions.fleet.bus import BusUnavailable

KEY_PREFIX = "shoal:conversation:"
VALUE_MAX_BYTES = 2 * 1024 * 1024
_TIMEOUT_S = 2.0
MAX_CONNECTIONS = 32  # of one gateway; who finds none free waits as long as for an answer


class ConversationStore(Protocol):
    async def read(self, name: str) -> bytes | None:
        """What is kept under a name; BusUnavailable where that cannot be known."""

    async def replace(self, name: str, old: bytes | None, new: bytes, ttl_s: float) -> bool:
        """Keep `new` for so long if `old` is still there (None: nothing); False if not. BusUnavailable as above."""

    async def close(self) -> None: ...


class ValkeyConversations:
    """`url` and `password` as for `ValkeyBus`."""

    def __init__(self, url: str, *, password: str | None = None) -> None:
        pool = valkey.BlockingConnectionPool.from_url(
            url,
            password=password,
            max_connections=MAX_CONNECTIONS,
            timeout=_TIMEOUT_S,
            socket_timeout=_TIMEOUT_S,
            socket_connect_timeout=_TIMEOUT_S,
        )
        self._client = valkey.Valkey.from_pool(pool)

    async def read(self, name: str) -> bytes | None:
        try:
            value: bytes | None = await self._client.get(KEY_PREFIX + name)
        except (ValkeyError, OSError) as error:
            raise BusUnavailable(str(error)) from error
        return value if value is not None and len(value) <= VALUE_MAX_BYTES else None

    async def replace(self, name: str, old: bytes | None, new: bytes, ttl_s: float) -> bool:
        key = KEY_PREFIX + name
        try:
            async with self._client.pipeline(transaction=True) as pipeline:
                await pipeline.watch(key)
                if await pipeline.get(key) != old:
                    return False
                pipeline.multi()  # type: ignore[no-untyped-call]
                pipeline.set(key, new, ex=max(1, ceil(ttl_s)))
                await pipeline.execute()
        except WatchError:
            return False
        except (ValkeyError, OSError) as error:
            raise BusUnavailable(str(error)) from error
        return True

    async def close(self) -> None:
        await self._client.aclose()
