"""Lookups, which no engine answers, have their own bound per tenant; a long listing is built once a second."""

import httpx
import pytest

from functions.api.ids import TenantId
from functions.gateway.chat.composition.composer import Composer
from functions.gateway.chat.composition.shared import ChatServices
from functions.gateway.chat.conversations import KeptConversations
from functions.gateway.chat.tools.calls import ToolCaller, ToolPolicy
from functions.gateway.errors import RequestRejected
from functions.gateway.http.asgi import make_app
from functions.gateway.intake.listing import Listing, RecentListings
from functions.gateway.tenant_limits import Lookups
from tests.gateway.composing import Shelf
from tests.gateway.rig import ACME_KEY, GLOBEX_KEY, PEPPER, Rig, catalogue, heartbeat, limits

ACME, GLOBEX = TenantId("acme"), TenantId("globex")


def count_allowed(lookups: Lookups, tenant: TenantId, most: int) -> int:
    for number in range(most):
        try:
            lookups.count(tenant, "models")
        except RequestRejected:
            return number
    return most


def test_a_flood_of_lookups_is_refused() -> None:
    now_s = 1000.0
    lookups = Lookups(6000, lambda: now_s)
    assert count_allowed(lookups, ACME, 2000) == 1000
    with pytest.raises(RequestRejected) as refused:
        lookups.count(ACME, "batches")
    answer = refused.value.answer
    assert (answer.status, answer.code, answer.retry_after_s) == (429, "too_many_lookups", 1)
    assert answer.message.startswith("Too many calls for batches: ")
    assert answer.message.endswith("The description of a batch changes at most every five seconds.")
    now_s += 2.0
    assert count_allowed(lookups, ACME, 2000) == 200, "100 a second"
    assert count_allowed(lookups, GLOBEX, 2000) == 1000, "each tenant's apart"


def test_only_tenants_that_ask_are_remembered() -> None:
    now_s = 0.0
    lookups = Lookups(60, lambda: now_s)
    for number in range(1000):
        lookups.count(TenantId(f"t{number}"), "files")
    now_s += 60.0
    lookups.count(ACME, "files")
    assert len(lookups) == 1


async def test_models_and_conversation_deletions_count_as_lookups() -> None:
    rig = Rig(limits=limits(lookups_per_minute=12))
    services = rig.gateway.services
    chat = ChatServices(services, rig.gateway.handle, ToolCaller(ToolPolicy()), KeptConversations(Shelf(), PEPPER))
    transport = httpx.ASGITransport(app=make_app(rig.gateway, [Composer(chat).add_routes]))
    async with httpx.AsyncClient(transport=transport, base_url="https://localhost") as client:

        async def status(method: str, path: str, key: str = ACME_KEY) -> int:
            return (await client.request(method, path, headers={"authorization": f"Bearer {key}"})).status_code

        assert [await status("GET", "/v1/models") for _ in range(3)] == [200, 200, 429]
        assert await status("GET", "/v1/models/acme/bot") == 429
        assert await status("DELETE", "/v1/conversations") == 429, "each is a turn of the bus's"
        assert await status("GET", "/v1/models", GLOBEX_KEY) == 200
        rig.clock.now_s += 5.0
        assert await status("DELETE", "/v1/conversations") == 400, "a header is missing"
        assert await status("GET", "/v1/models") == 429, "it was counted"


def test_listing_is_built_once_a_second_and_for_each_snapshot() -> None:
    rig = Rig().with_replicas("r0")
    first, second, fleet = catalogue(), catalogue(epoch=2), rig.gateway.services.fleet
    lately = RecentListings(rig.clock)
    told = lately.models(first, fleet, ACME)
    assert told == Listing().models(first, fleet, ACME).content
    fleet.fold(heartbeat("r1"), rig.clock())
    assert lately.models(first, fleet, ACME) is told
    anew = lately.models(second, fleet, ACME)
    assert anew == Listing().models(second, fleet, ACME).content != told
    rig.clock.now_s += 1.0
    assert lately.models(second, fleet, ACME) is not anew


def test_listings_are_evicted_by_age_and_by_size() -> None:
    rig, listed = Rig(), catalogue()
    fleet = rig.gateway.services.fleet
    tenants = [TenantId(f"t{number}") for number in range(10)]
    size_bytes = Listing().models(listed, fleet, tenants[0]).held_bytes
    lately = RecentListings(rig.clock, kept_bytes=4 * size_bytes)
    told = [lately.models(listed, fleet, tenant) for tenant in tenants]
    assert len(lately) == 4
    assert [lately.models(listed, fleet, tenant) is told[6 + at] for at, tenant in enumerate(tenants[6:])] == [True] * 4
    rig.clock.now_s += 1.0
    lately.models(listed, fleet, tenants[0])
    assert len(lately) == 1
    none = RecentListings(rig.clock, kept_bytes=size_bytes - 1)
    assert none.models(listed, fleet, tenants[0]) and not len(none)
