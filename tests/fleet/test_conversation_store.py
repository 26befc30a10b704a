"""conversation_store over a real Valkey: compare and replace, expiry, and losing the server."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from functions.fleet.bus import BusUnavailable
from functions.fleet.conversation_store import (
    KEY_PREFIX,
    MAX_CONNECTIONS,
    SHELF_PREFIX,
    VALUE_COST_BYTES,
    VALUE_MAX_BYTES,
    ValkeyConversations,
)
from tests.fleet.conftest import PASSWORD
from tests.ports import free_port

pytestmark = pytest.mark.servers
SHELF = "acme"


@pytest.fixture
async def store(valkey_port: int) -> AsyncIterator[ValkeyConversations]:
    made = ValkeyConversations(f"valkey://127.0.0.1:{valkey_port}/0", password=PASSWORD)
    await made._client.flushall()
    yield made
    await made.close()


async def test_only_the_read_version_may_be_replaced(store: ValkeyConversations) -> None:
    assert await store.read("a") is None
    assert await store.replace(SHELF, "a", None, b"one", 60)
    assert not await store.replace(SHELF, "a", None, b"two", 60), "somebody began it meanwhile"
    assert not await store.replace(SHELF, "a", b"other", b"two", 60), "somebody went on with it meanwhile"
    assert await store.read("a") == b"one"
    assert await store.replace(SHELF, "a", b"one", b"two", 60)
    assert await store.read("a") == b"two" and await store.read("b") is None


async def test_replacing_restarts_the_expiry(store: ValkeyConversations) -> None:
    await store.replace(SHELF, "a", None, b"one", 599.2)
    assert 0 < await store._client.ttl(KEY_PREFIX + "a") <= 600
    await store.replace(SHELF, "a", b"one", b"two", 3600)
    assert 3000 < await store._client.ttl(KEY_PREFIX + "a") <= 3600


async def test_a_shelf_is_bounded(store: ValkeyConversations) -> None:
    """A tenant that fills its shelf loses its own least recently used conversations, not those of other tenants."""
    store._shelf_bytes = 10_000
    value = b"x" * (3000 - VALUE_COST_BYTES)
    assert await store.replace("globex", "other", None, value, 60)
    for at, name in enumerate("abc"):
        assert await store.replace(SHELF, name, None, value, 60 + at)
    assert await store.replace(SHELF, "a", value, value, 600), "used again"
    assert await store.replace(SHELF, "d", None, value, 600)
    assert [name for name in "abcd" if await store.read(name)] == ["a", "c", "d"]
    assert await store.read("other") == value
    assert await store.replace(SHELF, "e", None, b"x" * 20_000, 600), "a single one is kept, whatever its size"
    assert [name for name in "abcde" if await store.read(name)] == ["e"]
    assert await sizes(store) == {b"e": b"20512", b"*": b"20512"}


@pytest.fixture
async def small_bus(store: ValkeyConversations) -> AsyncIterator[int]:
    """Leave 2 MiB for conversations on the server; return the size of each of eight that would fill them."""
    used_bytes = int((await store._client.info("memory"))["used_memory"])
    await store._client.config_set("maxmemory", 2 * (used_bytes + 2 * 2**20))
    yield 256 * 1024
    await store._client.config_set("maxmemory", 0)


async def test_single_tenant_uses_at_most_half_of_the_bus(store: ValkeyConversations, small_bus: int) -> None:
    for at in range(20):
        await store.replace(SHELF, f"s{at}", None, b"x" * small_bus, 60 + at)
    kept = [at for at in range(20) if await store.read(f"s{at}")]
    assert 2 <= len(kept) <= 4 and kept == list(range(20 - len(kept), 20)), "its own oldest have gone"
    memory = await store._client.info("memory")
    assert memory["used_memory"] < 0.6 * memory["maxmemory"]
    assert await store._client.set("shoal:replica:r0", b"x" * 1000), "heartbeats and quotas have room"


async def test_tenants_that_fill_their_shelves_leave_room_for_the_next(
    store: ValkeyConversations, small_bus: int
) -> None:
    value, kept = b"x" * (small_bus // 4), []
    for tenant in ("a", "b", "c"):
        for at in range(40):
            assert await store.replace(tenant, f"{tenant}{at}", None, value, 600 + at)
        kept.append(len([at for at in range(40) if await store.read(f"{tenant}{at}")]))
    assert kept[0] >= 10 and kept[0] > kept[1] > kept[2] >= 2
    assert await store.replace(SHELF, "mine", None, value, 60)
    assert await store.replace("a", "a39", value, value[:-1], 700), "what is replaced makes room for what comes"
    assert kept[0] == len([at for at in range(40) if await store.read(f"a{at}")]), "and nobody loses any to others"


async def test_growing_conversation_needs_room_only_for_its_growth(store: ValkeyConversations, small_bus: int) -> None:
    large = b"x" * (3 * small_bus)
    assert await store.replace(SHELF, "only", None, large, 60)
    longer = large + b"x" * 1000
    assert await store.replace(SHELF, "only", large, longer, 60)
    assert await store.read("only") == longer


async def test_full_bus_stores_no_more_conversations(store: ValkeyConversations, small_bus: int) -> None:
    await store._client.set("shoal:replica:r1", b"x" * (9 * small_bus))
    with pytest.raises(BusUnavailable, match="raise its maxmemory"):
        await store.replace(SHELF, "mine", None, b"x" * small_bus, 60)
    assert await store.read("mine") is None


async def test_expired_conversations_leave_the_shelf(store: ValkeyConversations) -> None:
    await store.replace(SHELF, "short", None, b"x", 1)
    async with asyncio.timeout(60):
        while await store.read("short") is not None:
            await asyncio.sleep(0.05)
    await store.replace(SHELF, "long", None, b"x", 600)
    assert set(await sizes(store)) == {b"long", b"*"}
    assert 600 < await store._client.ttl(f"{SHELF_PREFIX}{SHELF}:sizes") <= 660, "the shelf itself expires too"


async def test_deleted_conversation_cannot_be_restored(store: ValkeyConversations) -> None:
    await store.replace(SHELF, "a", None, b"one", 60)
    assert not await store.delete("nobody", "none") and not await store._client.keys(f"{SHELF_PREFIX}nobody*")
    assert await store.delete(SHELF, "a") and not await store.delete(SHELF, "a")
    assert await store.read("a") is None and await sizes(store) == {b"*": b"0"}
    assert not await store.replace(SHELF, "a", b"one", b"two", 60), "by a turn that was under way"


async def sizes(store: ValkeyConversations) -> dict[bytes, bytes]:
    client: Any = store._client
    found: dict[bytes, bytes] = await client.hgetall(f"{SHELF_PREFIX}{SHELF}:sizes")
    return found


async def test_oversized_conversation_is_not_read(store: ValkeyConversations) -> None:
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
        await away.replace(SHELF, "a", None, b"x", 60)
    with pytest.raises(BusUnavailable):
        await away.delete(SHELF, "a")
    await away.close()
