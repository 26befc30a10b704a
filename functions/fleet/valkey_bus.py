"""The bus over Valkey: PUBLISH for current listeners, SET with an expiry for processes that start later.

A hung server accepts connections and sends nothing. A listener therefore sends a ping after two seconds without a
message, and treats the server as lost four seconds later: before silence removes replicas. A server that answers may
still deliver nothing, if only the subscription has died. A listener without a heartbeat for SILENT_AFTER_S therefore
subscribes again and reads the stored heartbeats.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from math import ceil, inf
from types import TracebackType
from uuid import uuid4

from valkey.asyncio.client import PubSub
from valkey.exceptions import ValkeyError

from functions.fleet import snapshot_notices, valkey_client
from functions.fleet.bus import BusUnavailable
from functions.fleet.heartbeat import SILENCE_LIMIT_S, Heartbeat
from functions.fleet.heartbeat_gathering import (
    ALONE_CHANNEL,
    ALONE_PATTERN,
    GATHER,
    GATHERED_CHANNEL,
    HELD_KEY,
    KEY_PREFIX,
    PACE_KEY,
    ReplicaLines,
)
from functions.fleet.heartbeat_seals import sealed
from functions.fleet.own_stalls import StallGuard
from functions.fleet.role_credentials import Bearer
from functions.fleet.snapshot_notices import SnapshotNotice

NOTICES_CHANNEL = "shoal:snapshots"
STATS_CHANNEL = "shoal:rollout-stats"
POOLS_CHANNEL = "shoal:pools"
PINS_CHANNEL = "shoal:pins"
HOMES_CHANNEL = "shoal:homes"
NODES_CHANNEL = "shoal:nodes"
PREFIXES_CHANNEL = "shoal:prefixes"
PREFIX_ASKS_CHANNEL = "shoal:prefix-asks"
PINS_KEY_PREFIX = "shoal:pins:"
HOMES_KEY_PREFIX = "shoal:homes:"
_TIMEOUT_S = 2.0
_HUNG_AFTER_S = 4.0  # after a ping
SILENT_AFTER_S = 6.0  # less than half of the time after which silence removes replicas
_MESSAGES = ("message", "pmessage")
_SCAN_PAGE = 500


class ValkeyBus:
    """The bus over Valkey. `url` as in `valkey_client`; pass the password by `password`, since in a URL it needs
    quoting."""

    def __init__(self, url: str, *, password: valkey_client.Password | None = None, seal: Bearer | None = None) -> None:
        """`seal`: the secret that authenticates the replicas that publish here."""
        self._seal = seal
        self._client = valkey_client.client(
            url,
            password=password,
            socket_timeout=_TIMEOUT_S,
            socket_connect_timeout=_TIMEOUT_S,
            health_check_interval=5,
        )
        self._gather = self._client.register_script(GATHER)
        self._lines: dict[str, ReplicaLines] = {}  # by replica that publishes here: one for an agent

    async def publish(self, heartbeat: Heartbeat) -> None:
        lines = self._lines.setdefault(heartbeat.replica_id, ReplicaLines())
        line = lines.next_line(heartbeat)
        text = line.text if self._seal is None else sealed(line.text, heartbeat.replica_id, self._seal)
        keys = [KEY_PREFIX + heartbeat.replica_id, HELD_KEY, PACE_KEY]
        flags = [int(line.is_whole), int(line.at_once), int(SILENCE_LIMIT_S)]
        try:
            with _errors():
                known, alone = await self._gather(keys, [text, *flags, GATHERED_CHANNEL, ALONE_CHANNEL])
        except (BusUnavailable, asyncio.CancelledError):
            lines.mark_lost()
            raise
        lines.mark_sent(line, heartbeat, is_known=bool(known), single_listeners=int(alone))

    async def listen(self) -> AsyncGenerator[list[bytes], None]:
        while True:
            several = self._stored_then_published(
                GATHERED_CHANNEL, KEY_PREFIX, pattern=ALONE_PATTERN, silent_after_s=SILENT_AFTER_S
            )
            async for messages in several:
                yield messages

    async def publish_stats(self, message: bytes) -> None:
        await self._publish(STATS_CHANNEL, message)

    async def stats(self) -> AsyncIterator[bytes]:
        async for message in self._messages(STATS_CHANNEL):
            yield message

    async def publish_pools(self, message: bytes) -> None:
        await self._publish(POOLS_CHANNEL, message)

    async def pools(self) -> AsyncIterator[bytes]:
        async for message in self._messages(POOLS_CHANNEL):
            yield message

    async def publish_nodes(self, message: bytes) -> None:
        await self._publish(NODES_CHANNEL, message)

    async def nodes(self) -> AsyncIterator[bytes]:
        async for message in self._messages(NODES_CHANNEL):
            yield message

    async def publish_pins(self, message: bytes, ttl_s: float) -> None:
        await self._publish_and_store(PINS_CHANNEL, PINS_KEY_PREFIX, message, ttl_s)

    async def pins(self) -> AsyncIterator[list[bytes]]:
        async for messages in self._stored_then_published(PINS_CHANNEL, PINS_KEY_PREFIX):
            yield messages

    async def publish_homes(self, message: bytes, ttl_s: float) -> None:
        await self._publish_and_store(HOMES_CHANNEL, HOMES_KEY_PREFIX, message, ttl_s)

    async def homes(self) -> AsyncIterator[list[bytes]]:
        async for messages in self._stored_then_published(HOMES_CHANNEL, HOMES_KEY_PREFIX):
            yield messages

    async def publish_prefixes(self, message: bytes) -> None:
        await self._publish(PREFIXES_CHANNEL, message)

    async def prefixes(self) -> AsyncIterator[bytes]:
        async for message in self._messages(PREFIXES_CHANNEL):
            yield message

    async def publish_prefix_request(self, message: bytes) -> None:
        await self._publish(PREFIX_ASKS_CHANNEL, message)

    async def prefix_requests(self) -> AsyncIterator[bytes]:
        async for message in self._messages(PREFIX_ASKS_CHANNEL):
            yield message

    async def announce(self, notice: SnapshotNotice) -> None:
        await self._publish(NOTICES_CHANNEL, snapshot_notices.encode(notice))

    async def notices(self) -> AsyncIterator[SnapshotNotice]:
        async for message in self._messages(NOTICES_CHANNEL):
            notice = snapshot_notices.decode(message)
            if notice is not None:
                yield notice

    async def _publish(self, channel: str, message: bytes) -> None:
        with _errors():
            await self._client.publish(channel, message)

    async def _publish_and_store(self, channel: str, key_prefix: str, message: bytes, ttl_s: float) -> None:
        with _errors():
            async with self._client.pipeline(transaction=False) as pipeline:
                pipeline.set(key_prefix + uuid4().hex, message, ex=max(1, ceil(ttl_s)))
                pipeline.publish(channel, message)
                await pipeline.execute()

    async def _messages(self, channel: str) -> AsyncIterator[bytes]:
        """Yield messages published from now on."""
        async with self._subscribed(channel) as subscription:
            async for message in _receive(subscription):
                yield message

    async def _stored_then_published(
        self, channel: str, key_prefix: str, pattern: str = "", silent_after_s: float = inf
    ) -> AsyncGenerator[list[bytes], None]:
        """Yield all values stored under a key prefix, then messages as they are published; none is lost in between.
        Ends if there is no message for `silent_after_s`."""
        async with self._subscribed(channel, pattern) as subscription:
            yield [message async for message in self._stored_values(key_prefix)]
            async for message in _receive(subscription, silent_after_s):
                yield [message]

    @contextlib.asynccontextmanager
    async def _subscribed(self, channel: str, pattern: str = "") -> AsyncIterator[PubSub]:
        """Subscribe to a channel, and a pattern if given; no message is lost from here on. BusUnavailable if that fails
        or the connection is lost in the block."""
        with _errors():
            async with self._client.pubsub() as subscription:
                await subscription.subscribe(channel)
                if pattern:
                    await subscription.psubscribe(pattern)
                for _ in range(1 + bool(pattern)):
                    if await subscription.get_message(timeout=_TIMEOUT_S) is None:  # the server's confirmation
                        raise BusUnavailable("the bus does not answer")
                yield subscription

    async def _stored_values(self, prefix: str) -> AsyncIterator[bytes]:
        """Yield the values under a key prefix, a page at a time."""
        cursor = 0
        with _errors():
            while True:
                cursor, keys = await self._client.scan(cursor, match=prefix + "*", count=_SCAN_PAGE)
                for value in await self._client.mget(keys) if keys else []:
                    if value is not None:
                        yield value
                if cursor == 0:
                    return

    async def close(self) -> None:
        await self._client.aclose()

    async def __aenter__(self) -> "ValkeyBus":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


@contextlib.contextmanager
def _errors() -> Iterator[None]:
    """Turn errors of the client into BusUnavailable."""
    try:
        yield
    except (ValkeyError, OSError) as error:
        raise BusUnavailable(str(error)) from error


async def _receive(subscription: PubSub, silent_after_s: float = inf) -> AsyncIterator[bytes]:
    """Yield messages as they arrive; end if there is none for `silent_after_s`. A quiet server is pinged;
    BusUnavailable if it does not answer."""
    loop, asked_s = asyncio.get_running_loop(), None
    heard_s = loop.time()
    rounds = StallGuard(_TIMEOUT_S, heard_s)
    while True:
        message = await subscription.get_message(timeout=_TIMEOUT_S)
        may_judge = rounds.is_on_time(loop.time())
        if message is None:
            if asked_s is None:
                asked_s = loop.time()
                await subscription.ping()
            elif may_judge and loop.time() - asked_s > _HUNG_AFTER_S:
                raise BusUnavailable("the bus does not answer")
            continue
        asked_s = None
        if message["type"] in _MESSAGES:
            heard_s = loop.time()
            yield message["data"]
        elif may_judge and loop.time() - heard_s > silent_after_s:
            return
