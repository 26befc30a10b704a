"""Several pools of one model at a gateway: where requests start, which pool takes over, and which tenants it never
serves."""

from typing import Any

import orjson
import pytest

from functions.api.snapshot import PlacementEntry, TenantEntry
from functions.gateway.intake.listing import Listing, describe_model
from functions.gateway.intake.routes import CHAT, TOKENIZE
from functions.gateway.limits import Limits
from functions.gateway.routing.load_client import LoadAnswer
from tests.gateway import sse
from tests.gateway.detours import figure
from tests.gateway.engine_rig import Client, Play
from tests.gateway.hello import Playing
from tests.gateway.rig import GLOBEX_KEY, catalogue, headers, heartbeat, key_entry, mint
from tests.pools_rig import (
    ACME,
    ACMES,
    BOT,
    FP8,
    FP8_DIGEST,
    GLOBEX,
    INITECH,
    INITECHS,
    LLAMA,
    SPOT,
    adapter,
    base,
    pool,
    snapshot,
)

ACME_KEY, INITECH_KEY = mint("acme-ci", b"a"), mint("initech-ci", b"i")
KEYS = {ACME: ACME_KEY, GLOBEX: GLOBEX_KEY, INITECH: INITECH_KEY}
REPLICAS = {"own0": ACMES, "main0": LLAMA, "spot0": SPOT, "fp0": FP8, "ini0": INITECHS}


def sections(*rules: PlacementEntry, **changes: Any) -> dict[str, Any]:
    whole = snapshot(*rules, keys=tuple(key_entry(key, tenant) for tenant, key in KEYS.items()), **changes)
    return {name: getattr(whole, name) for name in ("tenants", "keys", "models", "pools", "routing", "admission")}


def serves(p: Play, *replicas: str, **changes: Any) -> Play:
    for name in replicas or REPLICAS:
        beat = {"pool": REPLICAS[name], "adapters": (BOT,)} | changes
        p.gateway.receive_heartbeat(heartbeat(name, **beat))
    return p


def lose_replicas(p: Play, *replicas: str) -> None:
    for name in replicas:
        p.gateway.receive_heartbeat(heartbeat(name, pool=REPLICAS[name], sequence=9, phase="dead"))


def send_request(
    p: Play, tenant: str = GLOBEX, model: str = LLAMA, service_class: str = "interactive", **fields: Any
) -> None:
    p.ask(model, stream=False, header_key=KEYS[tenant], header_x_shoal_class=service_class, **fields)  # type: ignore[index]


async def answers(p: Play) -> tuple[str, str]:
    """Answer the request; return the replica that got it and the name that it was sent under."""
    engine = await p.connects()
    name = engine.requests[-1]["model"]
    engine.answers(200, sse.whole(name))
    assert p.client.status == 200, p.client.body
    return str(engine.replica_id), name


# the first pool


@pytest.mark.parametrize(("tenant", "replica"), [(ACME, "own0"), (GLOBEX, "main0"), (INITECH, "ini0")])
async def test_each_tenant_starts_in_its_own_pool(play: Playing, tenant: str, replica: str) -> None:
    p = serves(play("r0", **sections()))
    send_request(p, tenant)
    assert await answers(p) == (replica, REPLICAS[replica])
    assert orjson.loads(p.client.body)["model"] == LLAMA, "as the client called it"
    assert p.client.headers[b"x-shoal-model"] == b"llama@v1"
    assert p.client.headers[b"x-shoal-replica"] == replica.encode()
    assert b"x-shoal-degraded" not in p.client.headers


async def test_batch_goes_to_the_cheap_pool(play: Playing) -> None:
    p = serves(play("r0", **sections(PlacementEntry(SPOT, classes=("batch",)))))
    send_request(p, service_class="batch")
    assert await answers(p) == ("spot0", SPOT)
    send_request(p)
    assert await answers(p) == ("main0", LLAMA)


async def test_long_prompt_is_placed_by_its_rule(play: Playing) -> None:
    p = serves(play("r0", **sections(PlacementEntry(SPOT, min_prompt_tokens=500))))
    send_request(p, messages=[{"role": "user", "content": "word " * 1000}])
    assert (await answers(p))[0] == "spot0"


async def test_predicted_time_moves_a_request_before_it_waits(play: Playing) -> None:
    p = serves(play("r0", **sections(PlacementEntry(SPOT, min_predicted_ttft_ms=800))))
    send_request(p)
    assert (await answers(p))[0] == "main0"
    slow = heartbeat("main0", pool=LLAMA, adapters=(BOT,), sequence=2, waiting=4, service_ms=300.0)
    p.gateway.receive_heartbeat(slow)
    send_request(p)
    assert (await answers(p))[0] == "spot0"


async def test_adapter_is_served_by_the_chosen_pool(play: Playing) -> None:
    p = serves(play("r0", **sections()))
    send_request(p, ACME, "acme/bot")
    assert await answers(p) == ("own0", BOT)
    lose_replicas(p, "own0")
    send_request(p, ACME, "acme/bot")
    assert await answers(p) == ("main0", BOT)
    assert b"x-shoal-degraded" not in p.client.headers


# takeover


async def test_takeover_by_a_pool_of_the_model_is_not_degraded(play: Playing) -> None:
    p = serves(play("r0", **sections()))
    lose_replicas(p, "main0", "fp0")
    send_request(p)
    assert (await answers(p))[0] == "spot0"
    assert b"x-shoal-degraded" not in p.client.headers
    assert figure(p, "shoal_pool_takeovers_total", **{"from": LLAMA, "to": SPOT}) == 1
    assert figure(p, "shoal_degraded_total", **{"from": LLAMA, "to": SPOT}) == 0
    assert p.gateway.services.traces.recent[-1].row().degraded_from == ""
    assert p.quiet()


async def test_takeover_with_other_precision_is_reported_as_degraded(play: Playing) -> None:
    p = serves(play("r0", **sections()))
    lose_replicas(p, "main0")
    send_request(p)
    assert (await answers(p))[0] == "fp0"
    assert p.client.headers[b"x-shoal-degraded"] == b"from=llama@v1;reason=unavailable"
    assert p.client.headers[b"x-shoal-digest"] == FP8_DIGEST.encode()
    assert figure(p, "shoal_degraded_total", **{"from": LLAMA, "to": FP8}) == 1


async def test_placement_on_other_weights_is_not_degraded(play: Playing) -> None:
    p = serves(play("r0", **sections(PlacementEntry(FP8, tiers=("free",)))))
    send_request(p)
    assert (await answers(p))[0] == "fp0"
    assert b"x-shoal-degraded" not in p.client.headers
    assert p.client.headers[b"x-shoal-digest"] == FP8_DIGEST.encode()


async def test_full_pool_is_followed_by_the_next(play: Playing) -> None:
    p = serves(play("r0", **sections()))
    send_request(p, ACME)
    engine = await p.connects()
    assert engine.replica_id == "own0"
    engine.refuses(503)
    assert (await answers(p))[0] == "main0"


async def test_batch_does_not_leave_a_full_pool(play: Playing) -> None:
    p = serves(play("r0", **sections(PlacementEntry(SPOT, classes=("batch",)))))
    send_request(p, service_class="batch")
    engine = await p.connects()
    assert engine.replica_id == "spot0"
    engine.refuses(503)
    await p.settle()
    assert p.client.status == 503 and not p.dials, "and fills no dearer one"


async def test_engine_refusal_after_a_takeover_is_the_callers_error(play: Playing) -> None:
    p = serves(play("r0", **sections()))
    lose_replicas(p, "main0", "fp0")
    send_request(p)
    engine = await p.connects()
    engine.answers(400, orjson.dumps({"error": {"message": "no such thing", "code": 400}}))
    assert (p.client.status, p.client.error["code"]) == (400, "invalid_request")
    assert not p.dials


# dedicated pools


async def test_dedicated_tenant_uses_no_other_pool(play: Playing) -> None:
    p = serves(play("r0", **sections()))
    lose_replicas(p, "ini0")
    for model in (LLAMA, "initech/bot"):
        send_request(p, INITECH, model)
        await p.settle()
        assert (p.client.status, p.client.error["code"]) == (503, "no_capacity") and not p.dials


async def test_other_tenants_never_reach_a_dedicated_pool(play: Playing) -> None:
    """All shared pools are gone. Tried: both routes, the tenant's models, its own adapter and names used only by
    mistake."""
    p = serves(play("r0", **sections()))
    lose_replicas(p, "main0", "fp0", "spot0")
    for route in (CHAT, TOKENIZE):
        for model in (LLAMA, "globex/bot"):
            p.ask(model, stream=False, route=route, header_key=GLOBEX_KEY)
            await p.settle()
            assert p.client.status == 503 and not p.dials
    for model in (ACMES, INITECHS, FP8, "acme/bot"):
        client = Client()
        body = sse.compact({"model": model, "messages": [{"role": "user", "content": "hi"}]})
        assert p.gateway.handle(CHAT, headers(GLOBEX_KEY), body, client, p.rig.clock()) is None
        assert (client.status, client.error["code"]) == (404, "model_not_found")


async def test_pool_that_becomes_dedicated_gets_no_retries_of_others(play: Playing) -> None:
    """The request was routed under the old snapshot and is retried under the new one."""
    shared_still = sections(pools=(pool(LLAMA),), models=(base(LLAMA), adapter("globex")))
    p = serves(play("r0", **shared_still), "main0")
    p.gateway.receive_heartbeat(heartbeat("main1", pool=LLAMA, adapters=()))
    send_request(p)
    engine = await p.connects()
    now_acmes = sections(pools=(pool(LLAMA, ACME),), models=(base(LLAMA), adapter("globex")))
    p.gateway.swap(catalogue(epoch=2, **now_acmes))
    engine.dies()
    await p.settle()
    assert not p.dials, "it had two replicas to be tried again on"
    assert p.client.status in (502, 503)


class Agents:
    """Agents that record which adapters a gateway requests from which replica."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []

    async def load(self, replica: Any, engine_name: str, wait_s: float) -> LoadAnswer:
        self.asked.append((str(replica.pool), engine_name))
        return LoadAnswer("loaded")

    async def close(self) -> None:
        """Do nothing: nothing is kept open."""


async def test_cold_adapters_are_loaded_only_in_the_tenants_pools(play: Playing) -> None:
    agents = Agents()
    p = play("r0", loader=agents, limits=Limits(quarantine_after_replicas=0), **sections())
    serves(p, adapters=(), peer_port=1, adapter_room=4)
    for tenant, model, expected in (
        (ACME, "acme/bot", ACMES),
        (GLOBEX, "globex/bot", LLAMA),
        (INITECH, "initech/bot", INITECHS),
    ):
        send_request(p, tenant, model)
        await p.settle()
        assert agents.asked[-1][0] == expected
        assert agents.asked[-1][1].startswith(model)


# listings for tenants


async def test_listed_capacity_counts_the_tenants_pools(play: Playing) -> None:
    p = serves(play("r0", **sections()))
    lose_replicas(p, "own0", "fp0")
    services = p.gateway.services
    book = services.state.catalogue
    assert book is not None

    def capacity_by_model(tenant: Any) -> dict[str, int]:
        listed = orjson.loads(Listing().models(book, services.fleet, tenant).content)["data"]
        return {model["id"]: model["capacity"]["replicas_ready"] for model in listed}

    assert capacity_by_model(ACME) == {LLAMA: 2, "acme/bot": 2}, "of the shared ones: its own is gone"
    assert capacity_by_model(GLOBEX) == {LLAMA: 2, "globex/bot": 0}
    assert capacity_by_model(INITECH) == {LLAMA: 1, "initech/bot": 0}
    one = describe_model(book, services.fleet, INITECH, LLAMA)
    assert one is not None and one["capacity"] == {"ready": True, "replicas_ready": 1}


async def test_tenant_without_a_pool_has_no_callable_model(play: Playing) -> None:
    lonely = TenantEntry(INITECH, "gold", (LLAMA,), pools="dedicated")
    changed = sections(
        tenants=(lonely, TenantEntry(GLOBEX, "free", (LLAMA,)), TenantEntry(ACME, "gold", ())),
        pools=(pool(LLAMA),),
        models=(base(LLAMA),),
    )
    p = play("r0", **changed)
    book = p.gateway.services.state.catalogue
    assert book is not None and book.callable_models(INITECH) == []
