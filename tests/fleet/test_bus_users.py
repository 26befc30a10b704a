"""Users of a real Valkey: each role's own traffic works, and it cannot write the data of other roles.

The defect that these tests guard against: one shared password let an agent write quotas, announce snapshots and end
conversations.
"""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import valkey
import valkey.asyncio as valkey_async
from valkey.exceptions import AuthenticationError, NoPermissionError

from functions.fleet import valkey_client
from functions.fleet.bus import BusUnavailable
from functions.fleet.bus_users import USERS, BusUser, login, password_of, server_users
from functions.fleet.conversation_store import ValkeyConversations
from functions.fleet.quota_leases import Group, ValkeyQuotaBroker
from functions.fleet.quota_regions import RegionBus
from functions.fleet.snapshot_notices import SnapshotNotice
from functions.fleet.valkey_bus import ValkeyBus
from tests.fleet.builders import beat
from tests.fleet.conftest import PASSWORD
from tests.fleet.test_quota_leases import request_for

pytestmark = pytest.mark.servers
NOTICE = SnapshotNotice(7)


@pytest.fixture(scope="module")
def url(valkey_port: int) -> Iterator[str]:
    with valkey.Valkey(port=valkey_port, password=PASSWORD) as operator:
        for line in server_users(PASSWORD):
            operator.execute_command("ACL", "SETUSER", *_words(line)[1:])
        yield f"valkey://127.0.0.1:{valkey_port}/0"
        operator.execute_command("ACL", "DELUSER", *USERS)


def _words(line: str) -> list[str]:
    """Split a line as the server splits its users file: a selector in parentheses is one word."""
    root, _, selector = line.partition(" (")
    return [*root.split(), f"({selector}"]


@asynccontextmanager
async def raw(url: str, user: BusUser) -> AsyncIterator[valkey_async.Valkey]:
    client = valkey_client.client(url, password=login(user, PASSWORD), socket_timeout=5)
    try:
        yield client
    finally:
        await client.aclose()


async def test_password_change_needs_no_restart_of_bus_clients(url: str, valkey_port: int, tmp_path: Path) -> None:
    """Reading the password only at the start would cut off each process until its restart: an hour for accelerators."""
    file, after = tmp_path / "bus", "another password"
    file.write_text(login("gateway", PASSWORD) + "\n")
    client = valkey_client.client(url, password=valkey_client.password_in(file), socket_timeout=5)
    with valkey.Valkey(port=valkey_port, password=PASSWORD) as operator:
        try:
            assert await client.ping()
            for users, text in ((server_users(after), login("gateway", after)), (server_users(PASSWORD), None)):
                for line in users:
                    operator.execute_command("ACL", "SETUSER", *_words(line)[1:])
                file.write_text((text or login("gateway", PASSWORD)) + "\n")
                operator.execute_command("CLIENT", "KILL", "USER", "gateway")  # as a restart of the bus does
                with suppress(valkey.ConnectionError):  # a pooled connection
                    await client.ping()
                assert await client.ping()
        finally:
            await client.aclose()


async def test_a_password_that_cannot_be_read_is_a_bus_that_is_away(url: str, tmp_path: Path) -> None:
    """The file may be unreadable while a Secret's volume changes; any other exception would end the caller's task."""
    file = tmp_path / "bus"
    file.write_text(login("agent", PASSWORD))
    bus = ValkeyBus(url, password=valkey_client.password_in(file))
    file.unlink()
    with pytest.raises(BusUnavailable):
        await bus.publish(beat())
    file.write_text(login("agent", PASSWORD))
    await bus.publish(beat())
    await bus.close()


async def test_each_role_can_use_its_own_channels(url: str) -> None:
    async with AsyncExitStack() as stack:
        gateway, registry, agent = [
            await stack.enter_async_context(ValkeyBus(url, password=login(user, PASSWORD)))
            for user in ("gateway", "registry", "agent")
        ]
        hears: dict[str, tuple[Callable[[], AsyncIterator[Any]], Callable[[], Awaitable[None]]]] = {
            "heartbeats at a gateway": (gateway.listen, lambda: agent.publish(beat(replica_id="r-1"))),
            "heartbeats at the registry": (registry.listen, lambda: agent.publish(beat(replica_id="r-2"))),
            "snapshots at a gateway": (gateway.notices, lambda: registry.announce(NOTICE)),
            "snapshots at an agent": (agent.notices, lambda: registry.announce(NOTICE)),
            "pins": (gateway.pins, lambda: gateway.publish_pins(b"pin", 5)),
            "homes": (gateway.homes, lambda: gateway.publish_homes(b"home", 5)),
            "pools": (registry.pools, lambda: gateway.publish_pools(b"pools")),
            "stats": (registry.stats, lambda: gateway.publish_stats(b"stats")),
            "prefixes": (gateway.prefixes, lambda: agent.publish_prefixes(b"prefixes")),
            "asks": (agent.prefix_requests, lambda: gateway.publish_prefix_request(b"ask")),
        }
        for name, (listen, say) in hears.items():
            assert await _is_heard(listen, say), name
        conversations = ValkeyConversations(url, password=login("gateway", PASSWORD))
        assert await conversations.replace("shelf", "one", None, b"text", 10.0)
        assert await conversations.read("one") == b"text"
        assert await conversations.delete("shelf", "one")
        await conversations.close()
        quotas = ValkeyQuotaBroker(url, password=login("gateway", PASSWORD), timeout_s=5.0)
        assert (await quotas.request_leases("gateway-1", [Group(False, (request_for(5.0),))])).gateways >= 1
        await quotas.close()
        regions = RegionBus(url, password=login("registry", PASSWORD))
        used = await regions.read()
        await regions.charge("b", used, is_whole=True)
        await regions.close()


async def _is_heard(listen: Callable[[], AsyncIterator[Any]], say: Callable[[], Awaitable[None]]) -> bool:
    heard = asyncio.Event()

    async def follow() -> None:
        async for message in listen():
            if message:
                heard.set()

    following = asyncio.create_task(follow())
    try:
        async with asyncio.timeout(60):
            while not heard.is_set():
                assert not following.done(), following.exception()
                await say()
                await asyncio.sleep(0.05)
        return True
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


@dataclass(frozen=True, slots=True)
class Deed:
    """A command on the bus and the users that may run it."""

    command: tuple[Any, ...]
    allowed: tuple[BusUser, ...] = ()


DEEDS = {
    "announce a snapshot": Deed(("PUBLISH", "shoal:snapshots", "x"), ("registry",)),
    "say a heartbeat": Deed(("PUBLISH", "shoal:heartbeats-gathered", "x"), ("agent",)),
    "say one to gateways of before": Deed(("PUBLISH", "shoal:heartbeats", "x"), ("agent",)),
    "say what pools want": Deed(("PUBLISH", "shoal:pools", "x"), ("gateway",)),
    "say what a rollout did": Deed(("PUBLISH", "shoal:rollout-stats", "x"), ("gateway",)),
    "pin a session": Deed(("SET", "shoal:pins:x", "y", "EX", "1"), ("gateway",)),
    "say a pin": Deed(("PUBLISH", "shoal:pins", "x"), ("gateway",)),
    "move a conversation's home": Deed(("PUBLISH", "shoal:homes", "x"), ("gateway",)),
    "say what a cache holds": Deed(("PUBLISH", "shoal:prefixes", "x"), ("agent",)),
    "keep a replica's word": Deed(("SET", "shoal:replica:x", "y", "EX", "1"), ("agent",)),
    "read a replica's word": Deed(("GET", "shoal:replica:x"), ("gateway", "registry", "agent")),
    "empty what is held": Deed(("DEL", "shoal:heartbeats-held"), ("agent",)),
    "write a quota": Deed(("HSET", "shoal:quota:account:acme", "left", "1"), ("gateway", "registry")),
    "forget a quota": Deed(("DEL", "shoal:quota:account:acme"), ("gateway", "registry")),
    "read a conversation": Deed(("GET", "shoal:conversation:x"), ("gateway",)),
    "end a conversation": Deed(("DEL", "shoal:conversation:x"), ("gateway",)),
    "hear heartbeats": Deed(("SUBSCRIBE", "shoal:heartbeats-gathered"), ("gateway", "registry")),
    "hear everything": Deed(("PSUBSCRIBE", "*")),
    "hear what gateways want": Deed(("SUBSCRIBE", "shoal:prefix-asks"), ("agent",)),
    "write anywhere else": Deed(("SET", "elsewhere", "x")),
    "do it in a script": Deed(("EVAL", "return redis.call('SET', 'shoal:other', 'x')", "0")),
    "empty the server": Deed(("FLUSHALL",)),
    "configure it": Deed(("CONFIG", "GET", "*")),
    "list who is connected": Deed(("CLIENT", "LIST")),
    "end others' connections": Deed(("CLIENT", "KILL", "TYPE", "normal")),
    "see the users": Deed(("ACL", "LIST")),
    "make it follow another": Deed(("REPLICAOF", "127.0.0.1", "1")),
    "stop it": Deed(("SHUTDOWN",)),
    "load code": Deed(("FUNCTION", "LIST")),
    "list all keys at once": Deed(("KEYS", "*")),
    "watch commands": Deed(("MONITOR",)),
}


@pytest.mark.parametrize("user", USERS)
async def test_roles_cannot_write_data_of_other_roles(url: str, user: BusUser) -> None:
    done, kept = set(), set()
    for name, deed in DEEDS.items():
        async with raw(url, user) as client:  # a new connection for each, since subscribing changes it
            try:
                await client.execute_command(*deed.command)
                done.add(name)
            except (NoPermissionError, valkey.ResponseError) as error:
                assert "permission" in str(error).lower(), (name, error)
                kept.add(name)
    assert done == {name for name, deed in DEEDS.items() if user in deed.allowed}
    assert kept == DEEDS.keys() - done


async def test_other_passwords_are_refused(url: str) -> None:
    for wrong in (f"agent {password_of('gateway', PASSWORD)}", f"agent {PASSWORD}", f"nobody {PASSWORD}"):
        async with ValkeyBus(url, password=wrong) as bus:
            with pytest.raises(BusUnavailable):
                await bus.publish_stats(b"x")
    client = valkey_client.client(url, password=f"agent {PASSWORD}")
    with pytest.raises(AuthenticationError):
        await client.ping()
    await client.aclose()


def test_the_servers_file_opens_nothing() -> None:
    text = "\n".join(server_users(PASSWORD))
    assert PASSWORD not in text
    for user in USERS:
        assert password_of(user, PASSWORD) not in text
        assert hashlib.sha256(password_of(user, PASSWORD).encode()).hexdigest() in text
