"""Limits across regions on a real Valkey; two of its databases are the buses of two regions."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from functions.fleet.quota_leases import (
    MICRO,
    NO_LIMIT,
    Grant,
    Group,
    LeaseAnswer,
    LeaseRequest,
    RateRequest,
    ValkeyQuotaBroker,
)
from functions.fleet.quota_regions import RegionBus, Used
from tests.fleet.conftest import PASSWORD, valkey_port

__all__ = ["valkey_port"]
pytestmark = pytest.mark.servers
SLOW_S = 1_000_000  # slow enough that the clock does not matter


@dataclass
class Bus:
    gateways: ValkeyQuotaBroker
    region: RegionBus

    async def request_tokens(
        self, tokens: float, *, places: int = 0, held: int = 0, account: str = "acme"
    ) -> Grant | None:
        answer = await self.answer(tokens, places=places, held=held, account=account)
        return answer.granted[0].grants[0] if answer.granted[0].ok else None

    async def answer(self, tokens: float, *, places: int = 0, held: int = 0, account: str = "acme") -> LeaseAnswer:
        rate = RateRequest(2, 60, 100 * MICRO, SLOW_S, int(tokens * MICRO), 1)
        limit = 5 if places or held else NO_LIMIT
        is_urgent = places >= 0  # a regular round returns places
        return await self.gateways.request_leases(
            "g0", [Group(is_urgent, (LeaseRequest(account, limit, held, places, (rate,)),))]
        )


@pytest.fixture
async def buses(valkey_port: int) -> AsyncIterator[tuple[Bus, Bus]]:
    urls = [f"valkey://127.0.0.1:{valkey_port}/{number}" for number in (0, 1)]
    made = tuple(Bus(ValkeyQuotaBroker(url, password=PASSWORD), RegionBus(url, password=PASSWORD)) for url in urls)
    await made[0].gateways._client.flushall()
    for bus in made:
        await bus.gateways.request_leases("g0", ())
        await bus.region.read()  # starts the counting
    yield made[0], made[1]
    for bus in made:
        await bus.gateways.close()
        await bus.region.close()


async def send_use(of: Bus, to: Bus, after: str = "0", *, is_whole: bool | None = None) -> tuple[Used, int | None]:
    used = await of.region.read(after)
    return used, await to.region.charge("a", used, is_whole=after == "0" if is_whole is None else is_whole)


async def test_use_in_another_region_is_charged_once(buses: tuple[Bus, Bus]) -> None:
    a, b = buses
    first, charged = await send_use(a, b)
    assert charged == 0
    assert await a.request_tokens(70) is not None
    after, charged = await send_use(a, b, first.upto)
    assert charged == 70 * MICRO
    assert await send_use(a, b, first.upto) is not None  # repeated by another registry of the region
    assert await b.request_tokens(40) is None
    granted = await b.request_tokens(30)
    assert granted is not None and granted.left_micro[0] == pytest.approx(0, abs=100_000)
    assert await a.request_tokens(-20) is not None  # returned there, so available here
    await send_use(a, b, after.upto)
    assert await b.request_tokens(20) is not None and await b.request_tokens(1) is None


async def test_the_other_region_counts_as_a_gateway_and_holds_its_places(buses: tuple[Bus, Bus]) -> None:
    a, b = buses
    first, _ = await send_use(a, b)
    assert (await b.answer(0)).gateways == 2
    held = await a.request_tokens(0, places=4)
    assert held is not None and held.places == 4
    await send_use(a, b, first.upto)
    assert await b.request_tokens(0, places=2) is None
    assert (await b.request_tokens(0, places=1)) is not None
    assert await b.region._client.hget("shoal:quota:account:acme", "s:region:a") is not None
    await a.request_tokens(0, places=-4, held=4)
    await send_use(a, b, first.upto)
    assert (await b.request_tokens(0, places=4, held=1)) is not None


async def test_use_during_silence_between_regions_is_not_charged(buses: tuple[Bus, Bus]) -> None:
    a, b = buses
    first, _ = await send_use(a, b)
    await b.region._client.delete("shoal:quota:region:a")  # expires after ten seconds of silence
    assert await a.request_tokens(70) is not None
    used, charged = await send_use(a, b, first.upto)
    assert charged is None  # the whole use has to be read first
    whole, charged = await send_use(a, b)
    assert charged == 0
    assert await b.request_tokens(100) is not None
    assert await a.request_tokens(10) is not None
    assert (await send_use(a, b, whole.upto))[1] == 10 * MICRO
    assert used.began == whole.began


async def test_a_bus_that_began_anew_counts_anew(buses: tuple[Bus, Bus]) -> None:
    a, b = buses
    await send_use(a, b)
    await a.request_tokens(50)
    await send_use(a, b)
    await a.gateways._client.flushdb()
    await a.region.read()
    await asyncio.sleep(0.01)
    await a.gateways.request_leases("g0", ())
    await a.request_tokens(30)
    assert (await send_use(a, b, is_whole=False))[1] is None
    assert (await send_use(a, b))[1] == 0
    await a.request_tokens(5)
    assert (await send_use(a, b))[1] == 5 * MICRO


async def test_paged_use_loses_no_account(buses: tuple[Bus, Bus]) -> None:
    a, _ = buses
    for number in range(12):
        await a.request_tokens(1, account=f"t{number}")
    seen: dict[str, int] = {}
    after, more = "0", True
    while more:
        page = await a.region.read(after, most=5)
        for account in page.accounts:
            seen[account.key] = int(account.rates[0].granted_micro)
        after, more = page.upto, page.more
    assert seen == {f"shoal:quota:account:t{number}": MICRO for number in range(12)}
    assert (await a.region.read(after)).accounts == ()


async def test_region_without_followers_counts_nothing(valkey_port: int) -> None:
    url = f"valkey://127.0.0.1:{valkey_port}/2"
    broker = ValkeyQuotaBroker(url, password=PASSWORD)
    await broker._client.flushdb()
    rate = RateRequest(2, 60, 100 * MICRO, SLOW_S, MICRO, 1)
    await broker.request_leases("g0", [Group(True, (LeaseRequest("acme", NO_LIMIT, 0, 0, (rate,)),))])
    assert set(await broker._client.hkeys("shoal:quota:account:acme")) == {b"2"}  # type: ignore[misc]
    await broker.close()
