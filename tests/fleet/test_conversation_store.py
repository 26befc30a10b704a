"""conversation_store over a real Valkey: compare and replace, expiry, and losing the server."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from functions.fleet.bus import BusUnavailable
from functions.fleet.conversation_store import KEY_PREFIX, MAX_CONNECTIONS, VALUE_MAX_BYTES, ValkeyConversations
from tests.fleet.conftest import PASSWORD, free_port

pytestmark = pytest.mark.servers


@pytest.fixture
async def store(valkey_port: int) -> AsyncIterator[ValkeyConversations]:
    made = ValkeyConversations(f"valkey://127.0.0.1:{valkey_port}/0", password=PASSWORD)
    await made._client.flushall()
    yield made
    await made.close()


async def test_what_was_read_may_be_replaced_and_nothing_else(store: ValkeyConversations) -> None:
    assert await store.read("a") is None
    assert await store.replace("a", None, b"one", 60)
    assert not await store.replace("a", None, b"two", 60), "somebody began it meanwhile"
    assert not await store.replace("a", b"other", b"two", 60), "somebody went on with it meanwhile"
    assert await store.read("a") == b"one"
    assert await store.replace("a", b"one", b"two", 60)
    assert await store.read("a") == b"two" and await store.read("b") is None


async def test_each_replacing_begins_its_time_anew(store: ValkeyConversations) -> None:
    await store.replace("a", None, b"one", 599.2)
    assert 0 < await store._client.ttl(KEY_PREFIX + "a") <= 600
    await store.replace("a", b"one", b"two", 3600)
    assert 3000 < await store._client.ttl(KEY_PREFIX + "a") <= 3600


async def test_what_is_absurdly_large_is_not_read(store: ValkeyConversations) -> None:
    await store._client.set(KEY_PREFIX + "a", b"x" * (VALUE_MAX_BYTES + 1))
    assert await store.read("a") is None


async def test_its_connections_are_bounded(store: ValkeyConversations) -> None:
    readers = MAX_CONNECTIONS + 8
    assert await asyncio.gather(*(store.read("a") for _ in range(readers))) == [None] * readers
    pool = store._client.connection_pool
    assert len(pool._available_connections) <= MAX_CONNECTIONS and not pool._in_use_connections


async def test_a_store_that_is_away_says_so() -> None:
    away = ValkeyConversations(f"valkey://127.0.0.1:{free_port()}/0")
    with pytest.raises(BusUnavailable):
        await away.read("a")
    with pytest.raises(BusUnavailable):
        await away.replace("a", None, b"x", 60)
    await away.close()
