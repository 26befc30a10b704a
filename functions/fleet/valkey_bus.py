"""The bus over Valkey: PUBLISH for the present, SET with an expiry for whoever comes later."""

from collections.abc import AsyncIterator
from math import ceil
from types import TracebackType
from uuid import uuid4

import valkey.asyncio as valkey
from valkey.exceptions import ValkeyError

from functions.fleet import heartbeat as heartbeats
from functions.fleet import snapshot_notices
from functions.fleet.bus import BusUnavailable
from functions.fleet.heartbeat import SILENCE_LIMIT_S, Heartbeat
from functions.fleet.snapshot_notices import SnapshotNotice

CHANNEL = "shoal:heartbeats"
NEWS_CHANNEL = "shoal:snapshots"
STATS_CHANNEL = "shoal:rollout-stats"
POOLS_CHANNEL = "shoal:pools"
PINS_CHANNEL = "shoal:pins"
HOMES_CHANNEL = "shoal:homes"
PREFIXES_CHANNEL = "shoal:prefixes"
PREFIX_ASKS_CHANNEL = "shoal:prefix-asks"
KEY_PREFIX = "shoal:replica:"
PINS_KEY_PREFIX = "shoal:pins:"
HOMES_KEY_PREFIX = "shoal:homes:"
_TIMEOUT_S = 2.0
_SCAN_PAGE = 500


class ValkeyBus:
    """`url` is `valkey://host:port/0`; a password inside it needs its own quoting, so give it by `password`."""

    def __init__(self, url: str, *, password: str | None = None) -> None:
        self._client = valkey.Valkey.from_url(
            url,
            password=password,
            socket_timeout=_TIMEOUT_S,
            socket_connect_timeout=_TIMEOUT_S,
            health_check_interval=5,
        )

    async def publish(self, heartbeat: Heartbeat) -> None:
        message = heartbeats.encode(heartbeat)
        try:
            async with self._client.pipeline(transaction=False) as pipeline:
                pipeline.set(KEY_PREFIX + heartbeat.replica_id, message, ex=int(SILENCE_LIMIT_S))
                pipeline.publish(CHANNEL, message)
                await pipeline.execute()
        except (ValkeyError, OSError) as error:
            raise BusUnavailable(str(error)) from error

    async def latest(self) -> list[bytes]:
        return [value async for value in self._kept(KEY_PREFIX)]

    async def listen(self) -> AsyncIterator[bytes]:
        async for message in self._messages(CHANNEL):
            yield message

    async def publish_stats(self, message: bytes) -> None:
        try:
            await self._client.publish(STATS_CHANNEL, message)
        except (ValkeyError, OSError) as error:
            raise BusUnavailable(str(error)) from error

    async def stats(self) -> AsyncIterator[bytes]:
        async for message in self._messages(STATS_CHANNEL):
            yield message

    async def publish_pools(self, message: bytes) -> None:
        await self._tell(POOLS_CHANNEL, message)

    async def pools(self) -> AsyncIterator[bytes]:
        async for message in self._messages(POOLS_CHANNEL):
            yield message

    async def publish_pins(self, message: bytes, ttl_s: float) -> None:
        await self._tell_and_keep(PINS_CHANNEL, PINS_KEY_PREFIX, message, ttl_s)

    async def pins(self) -> AsyncIterator[bytes]:
        async for message in self._messages(PINS_CHANNEL, kept=PINS_KEY_PREFIX):
            yield message

    async def publish_homes(self, message: bytes, ttl_s: float) -> None:
        await self._tell_and_keep(HOMES_CHANNEL, HOMES_KEY_PREFIX, message, ttl_s)

    async def homes(self) -> AsyncIterator[bytes]:
        async for message in self._messages(HOMES_CHANNEL, kept=HOMES_KEY_PREFIX):
            yield message

    async def publish_prefixes(self, message: bytes) -> None:
        await self._tell(PREFIXES_CHANNEL, message)

    async def prefixes(self) -> AsyncIterator[bytes]:
        async for message in self._messages(PREFIXES_CHANNEL):
            yield message

    async def ask_prefixes(self, message: bytes) -> None:
        await self._tell(PREFIX_ASKS_CHANNEL, message)

    async def prefix_asks(self) -> AsyncIterator[bytes]:
        async for message in self._messages(PREFIX_ASKS_CHANNEL):
            yield message

    async def announce(self, news: SnapshotNotice) -> None:
        try:
            await self._client.publish(NEWS_CHANNEL, snapshot_notices.encode(news))
        except (ValkeyError, OSError) as error:
            raise BusUnavailable(str(error)) from error

    async def news(self) -> AsyncIterator[SnapshotNotice]:
        async for message in self._messages(NEWS_CHANNEL):
            news = snapshot_notices.decode(message)
            if news is not None:
                yield news

    async def _tell(self, channel: str, message: bytes) -> None:
        try:
            await self._client.publish(channel, message)
        except (ValkeyError, OSError) as error:
            raise BusUnavailable(str(error)) from error

    async def _tell_and_keep(self, channel: str, key_prefix: str, message: bytes, ttl_s: float) -> None:
        try:
            async with self._client.pipeline(transaction=False) as pipeline:
                pipeline.set(key_prefix + uuid4().hex, message, ex=max(1, ceil(ttl_s)))
                pipeline.publish(channel, message)
                await pipeline.execute()
        except (ValkeyError, OSError) as error:
            raise BusUnavailable(str(error)) from error

    async def _messages(self, channel: str, kept: str = "") -> AsyncIterator[bytes]:
        """What is published from now on; first, with `kept`, what lies under such keys (so that none falls between)."""
        try:
            async with self._client.pubsub(ignore_subscribe_messages=True) as subscription:
                await subscription.subscribe(channel)
                if kept:
                    await subscription.get_message(timeout=_TIMEOUT_S)  # the server's word that we are subscribed
                    async for message in self._kept(kept):
                        yield message
                while True:
                    message = await subscription.get_message(timeout=_TIMEOUT_S)
                    if message is not None:
                        yield message["data"]
        except (ValkeyError, OSError) as error:
            raise BusUnavailable(str(error)) from error

    async def _kept(self, prefix: str) -> AsyncIterator[bytes]:
        """The values under a prefix, a page at a time."""
        cursor = 0
        try:
            while True:
                cursor, keys = await self._client.scan(cursor, match=prefix + "*", count=_SCAN_PAGE)
                for value in await self._client.mget(keys) if keys else []:
                    if value is not None:
                        yield value
                if cursor == 0:
                    return
        except (ValkeyError, OSError) as error:
            raise BusUnavailable(str(error)) from error

    async def close(self) -> None:
        await self._client.aclose()

    async def __aenter__(self) -> "ValkeyBus":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
