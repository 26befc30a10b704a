"""Leases of limits by the quota script, on a real Valkey."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from functions.fleet.bus import BusUnavailable
from functions.fleet.quota_leases import MICRO, NO_LIMIT, Group, LeaseRequest, RateRequest, ValkeyQuotaBroker
from tests.fleet.conftest import PASSWORD, start_valkey
from tests.ports import free_port

pytestmark = pytest.mark.servers
SLOW = 3600  # a limit of 3,600 an hour: one a second, so that time does not blur what a test sees


def connect(port: int) -> ValkeyQuotaBroker:
    return ValkeyQuotaBroker(f"valkey://127.0.0.1:{port}/0", password=PASSWORD, timeout_s=60.0)


@pytest.fixture
async def broker(valkey_port: int) -> AsyncIterator[ValkeyQuotaBroker]:
    """A broker on a server that is past its learning phase."""
    made = connect(valkey_port)
    await made._client.flushall()
    await made._client.set("shoal:quota:born", 1)
    yield made
    await made.close()


def request_for(wanted: float, account: str = "acme", dimension: int = 2, burst: int = 100) -> LeaseRequest:
    return LeaseRequest(
        account, NO_LIMIT, 0, 0, (RateRequest(dimension, SLOW, burst * MICRO, SLOW, int(wanted * MICRO), 1),)
    )


def places(wanted: int, held: int = 0, limit: int = 5) -> LeaseRequest:
    return LeaseRequest("acme", limit, held, wanted, ())


async def tokens(broker: ValkeyQuotaBroker, wanted: float, gateway: str = "g0", *, urgent: bool = False) -> float:
    answer = await broker.request_leases(gateway, [Group(urgent, (request_for(wanted),))])
    return answer.granted[0].grants[0].granted_micro[0] / MICRO


async def test_a_round_is_granted_at_most_half_of_what_is_left(broker: ValkeyQuotaBroker) -> None:
    assert await tokens(broker, 30) == 30
    assert await tokens(broker, 1000) == pytest.approx(35, abs=5)
    assert await tokens(broker, 1000, "g1") == pytest.approx(17.5, abs=5)


async def test_an_urgent_ask_is_granted_in_full_or_not_at_all(broker: ValkeyQuotaBroker) -> None:
    assert await tokens(broker, 90, urgent=True) == 90
    answer = await broker.request_leases("g0", [Group(True, (request_for(50),))])
    assert not answer.granted[0].ok and answer.granted[0].grants[0].granted_micro == (0,)
    assert 0 < answer.granted[0].wait_us <= 40_000_000
    left = answer.granted[0].grants[0].left_micro[0] / MICRO
    assert left == pytest.approx(50 - answer.granted[0].wait_us / 1e6, abs=0.1), "the wait is as long as it says"


async def test_all_limits_of_all_accounts_or_none(broker: ValkeyQuotaBroker) -> None:
    await broker.request_leases("g0", [Group(True, (request_for(100, "acme/ci"),))])
    both = Group(True, (request_for(10), request_for(60, "acme/ci")))
    answer = await broker.request_leases("g0", [both])
    assert not answer.granted[0].ok
    assert await tokens(broker, 100, urgent=True) == 100, "nothing was taken of the account that had enough"


async def test_request_larger_than_the_burst_needs_a_full_level_and_leaves_a_debt(broker: ValkeyQuotaBroker) -> None:
    assert await tokens(broker, 150, urgent=True) == 150
    answer = await broker.request_leases("g0", [Group(False, (request_for(1),))])
    assert answer.granted[0].grants[0].granted_micro == (0,)
    assert answer.granted[0].grants[0].left_micro[0] < 0


async def test_returned_tokens_are_available_to_others(broker: ValkeyQuotaBroker) -> None:
    await tokens(broker, 100, urgent=True)
    await tokens(broker, -100)
    assert await tokens(broker, 100, "g1", urgent=True) == 100
    await tokens(broker, -1000)
    answer = await broker.request_leases("g0", [Group(False, (request_for(0),))])
    assert answer.granted[0].grants[0].left_micro[0] <= 100 * MICRO, "no more than there ever was"


async def test_a_limit_of_nothing_is_never_granted(broker: ValkeyQuotaBroker) -> None:
    nothing = LeaseRequest("acme", NO_LIMIT, 0, 0, (RateRequest(0, 0, 0, 60, MICRO, 1),))
    answer = await broker.request_leases("g0", [Group(True, (nothing,)), Group(False, (nothing,))])
    assert not answer.granted[0].ok and answer.granted[0].wait_us == 60_000_000
    assert answer.granted[1].grants[0].granted_micro == (0,)


async def test_places_are_never_granted_twice_and_come_back(broker: ValkeyQuotaBroker) -> None:
    first = await broker.request_leases("g0", [Group(False, (places(3),))])
    second = await broker.request_leases("g1", [Group(False, (places(3),))])
    assert [answer.granted[0].grants[0].places for answer in (first, second)] == [3, 2]
    urgent = await broker.request_leases("g1", [Group(True, (places(1, held=2),))])
    assert not urgent.granted[0].ok
    await broker.request_leases("g0", [Group(False, (places(-2, held=3),))])
    urgent = await broker.request_leases("g1", [Group(True, (places(1, held=2),))])
    assert urgent.granted[0].ok and urgent.granted[0].grants[0].places == 3


async def test_urgent_asks_that_cross_take_no_places_back(broker: ValkeyQuotaBroker) -> None:
    later = await broker.request_leases("g0", [Group(True, (places(number),)) for number in (3, 4, 6)])
    assert [(granted.ok, granted.grants[0].places) for granted in later.granted] == [(True, 3), (True, 4), (False, 0)]
    earlier = await broker.request_leases("g0", [Group(True, (places(number),)) for number in (1, 2)])
    assert [granted.grants[0].places for granted in earlier.granted] == [4, 4]
    assert not (await broker.request_leases("g1", [Group(True, (places(2),))])).granted[0].ok, "one of five is left"


async def test_places_of_a_gateway_that_died_come_back(broker: ValkeyQuotaBroker) -> None:
    await broker.request_leases("g0", [Group(False, (places(5),))])
    held = await broker._client.hget("shoal:quota:account:acme", "s:g0")  # type: ignore[misc]
    count, until_us = (int(part) for part in held.split())
    now_s, now_us = await broker._client.time()
    assert count == 5 and 0 < until_us - (now_s * MICRO + now_us) <= 10 * MICRO
    await broker._client.hset("shoal:quota:account:acme", "s:g0", "5 1")  # type: ignore[misc]
    answer = await broker.request_leases("g1", [Group(False, (places(5),))])
    assert answer.granted[0].grants[0].places == 5


async def test_a_clock_that_was_set_back_uses_up_nothing_and_holds_nothing_longer(broker: ValkeyQuotaBroker) -> None:
    now_s, _ = await broker._client.time()
    ahead_us = (now_s + 300) * MICRO
    account = "shoal:quota:account:acme"
    await broker._client.hset(account, "2", f"{40 * MICRO} {ahead_us}")  # type: ignore[misc]
    await broker._client.hset(account, "s:dead", f"5 {ahead_us}")  # type: ignore[misc]
    await broker._client.zadd("shoal:quota:gateways", {"dead": ahead_us})
    await broker._client.set("shoal:quota:born", ahead_us)
    answer = await broker.request_leases("g0", [Group(False, (request_for(0),)), Group(False, (places(1),))])
    assert (answer.gateways, answer.learning) == (1, False)
    assert answer.granted[0].grants[0].left_micro[0] == pytest.approx(60 * MICRO, rel=0.01)
    assert answer.granted[1].grants[0].places == 0, "the dead one's places are its own for a while"
    held = await broker._client.hget(account, "s:dead")  # type: ignore[misc]
    assert int(held.split()[1]) <= (now_s + 100) * MICRO, "and no longer than any other's"


async def test_gateways_are_counted(broker: ValkeyQuotaBroker) -> None:
    counts = [(await broker.request_leases(gateway, ())).gateways for gateway in ("g0", "g1", "g0", "g2")]
    assert counts == [1, 2, 2, 3]


async def test_full_accounts_expire(broker: ValkeyQuotaBroker) -> None:
    await tokens(broker, 10)
    ttl_ms = await broker._client.pttl("shoal:quota:account:acme")
    assert SLOW * 1000 < ttl_ms <= SLOW * 2000


async def test_new_server_reports_learning_and_grants_leases(valkey_port: int) -> None:
    broker = connect(valkey_port)
    await broker._client.flushall()
    answer = await broker.request_leases(
        "g0", [Group(True, (request_for(50),)), Group(False, (request_for(50), places(4)))]
    )
    assert answer.learning, "so that gateways tell what they spent"
    assert answer.granted[0].ok and answer.granted[1].grants[0].granted_micro == (25 * MICRO,)
    assert answer.granted[1].grants[1].places == 4, "places are held, and told again"
    await broker.close()


async def test_a_server_that_is_away_or_no_valkey_is_unavailable(tmp_path: Path) -> None:
    broker = connect(free_port())
    with pytest.raises(BusUnavailable):
        await broker.request_leases("g0", ())
    await broker.close()
    port = free_port()
    process = start_valkey(port, tmp_path)
    try:
        broker = connect(port)
        assert (await broker.request_leases("g0", ())).gateways == 1
        process.kill()
        process.wait()
        with pytest.raises(BusUnavailable):
            await broker.request_leases("g0", ())
        await broker.close()
    finally:
        process.kill()
        process.wait()
