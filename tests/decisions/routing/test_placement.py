"""Placement: which of a model's pools answers, by isolation, rules and takeover, and never another tenant's pool."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from functions.api.ids import PoolName, TenantId
from functions.api.snapshot import PlacementEntry, PoolEntry, RoutingEntry, ServiceClass, TenantEntry
from functions.decisions.catalogue import Catalogue, ResolvedModel
from functions.decisions.routing.choice import NoReplica, PoolView, ReplicaView, RouteRequest, decide
from functions.decisions.routing.placement import Placed, Usable, place, takeover_pools, takeovers, usable
from tests.pools_rig import (
    ACME,
    ACMES,
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
    routing,
    snapshot,
)

H200 = PoolName("llama-h200")
SHARED = Usable(shared=(LLAMA, H200, SPOT))
BATCH_TO_SPOT = PlacementEntry(SPOT, classes=("batch",))


def placed(
    tenant: TenantId = GLOBEX, tier: str = "free", service_class: ServiceClass = "interactive", tokens: int = 100
) -> Placed:
    return Placed(tenant, tier, service_class, tokens)


def rule(to: PoolName, **when: object) -> PlacementEntry:
    return PlacementEntry(to, **when)  # type: ignore[arg-type]


def catalogue(*rules: PlacementEntry) -> Catalogue:
    return Catalogue(snapshot(*rules), "test")


def found(tenant: TenantId, requested: str = LLAMA) -> ResolvedModel:
    model = catalogue().resolve(tenant, requested)
    assert model is not None
    return model


# pools of a tenant


def test_pool_order_is_own_then_the_models_then_others_by_name() -> None:
    pools = catalogue().pools_of[LLAMA]
    tenants = catalogue().tenants
    assert usable(pools, tenants[ACME]).in_order == (ACMES, LLAMA, FP8, SPOT)
    assert usable(pools, tenants[GLOBEX]).in_order == (LLAMA, FP8, SPOT)
    assert usable(pools, tenants[INITECH]).in_order == (INITECHS,)


def test_spot_capacity_is_used_last_and_by_rule() -> None:
    """Its name would sort before the other pools, and as the model's own pool before all of them."""
    pools = [msgspec.structs.replace(pool(LLAMA), spot=True), pool(SPOT), pool(H200)]
    mine = usable(pools, TenantEntry(GLOBEX, "free", ("*",)))
    assert mine.in_order == (H200, SPOT, LLAMA)
    assert place([], placed(), mine) == H200
    assert place([rule(LLAMA, classes=("batch",))], placed(service_class="batch"), mine) == LLAMA
    assert takeovers(mine.in_order[1:], "saturated", "interactive", (H200,)) == [SPOT, LLAMA]


def test_tenant_that_shares_does_not_use_dedicated_pools() -> None:
    entry = TenantEntry(INITECH, "gold", ("*",), pools="shared")
    assert usable(catalogue().pools_of[LLAMA], entry) == Usable(shared=(LLAMA, FP8, SPOT))


def test_pool_dedicated_to_several_tenants_serves_each() -> None:
    both = (pool(ACMES, ACME, INITECH),)
    for tenant in (ACME, INITECH):
        assert usable(both, TenantEntry(tenant, "gold", (), pools="dedicated")).in_order == (ACMES,)


def test_a_model_without_a_pool_for_a_tenant_does_not_exist_for_it() -> None:
    only_acmes = snapshot(pools=(pool(LLAMA, ACME),), models=(base(LLAMA), adapter("globex")))
    alone = Catalogue(only_acmes, "test")
    assert alone.resolve(ACME, LLAMA) is not None
    for requested in (LLAMA, f"{LLAMA}@v1", "globex/bot"):
        assert alone.resolve(GLOBEX, requested) is None
    assert [model.id for model in alone.callable_models(GLOBEX)] == []
    assert [model.id for model in alone.callable_models(ACME)] == [LLAMA]


def test_base_uses_the_pools_engine_name_and_an_adapter_its_own() -> None:
    assert (found(ACME).pool, found(ACME).engine_name) == (ACMES, ACMES)
    assert (found(ACME).id, found(ACME).served_as) == (LLAMA, "llama@v1")
    bot = found(ACME, "acme/bot")
    assert (bot.pool, bot.engine_name) == (ACMES, found(ACME, "acme/bot@v1").engine_name)
    assert bot.engine_name.startswith("acme/bot@")


def test_weights_declared_for_a_pool_have_their_own_digest() -> None:
    book = catalogue()
    assert book.in_pool(found(GLOBEX), FP8).digest == FP8_DIGEST
    assert book.in_pool(book.in_pool(found(GLOBEX), FP8), LLAMA).digest == found(GLOBEX).digest
    bot = found(GLOBEX, "globex/bot")
    assert book.in_pool(bot, FP8).digest == bot.digest, "an adapter is the same in every pool"
    assert book.resolve(GLOBEX, FP8) is None, "it declares weights, and is no model of its own"


# rules

CASES: tuple[tuple[str, PlacementEntry, Placed, bool], ...] = (
    ("class", rule(SPOT, classes=("batch",)), placed(service_class="batch"), True),
    ("another class", rule(SPOT, classes=("batch",)), placed(), False),
    ("tier", rule(SPOT, tiers=("free",)), placed(), True),
    ("another tier", rule(SPOT, tiers=("gold",)), placed(), False),
    ("tenant", rule(SPOT, tenants=(GLOBEX,)), placed(), True),
    ("another tenant", rule(SPOT, tenants=(ACME,)), placed(), False),
    ("long enough", rule(SPOT, min_prompt_tokens=100), placed(), True),
    ("too short", rule(SPOT, min_prompt_tokens=101), placed(), False),
    ("short enough", rule(SPOT, max_prompt_tokens=100), placed(), True),
    ("too long", rule(SPOT, max_prompt_tokens=99), placed(), False),
    ("nothing is asked", rule(SPOT), placed(), True),
    ("one of two does not hold", rule(SPOT, tiers=("free",), classes=("batch",)), placed(), False),
    ("a pool that is not there", rule(PoolName("gone")), placed(), False),
)


@pytest.mark.parametrize(("entry", "request_", "holds"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_rule_applies_if_all_its_conditions_hold(entry: PlacementEntry, request_: Placed, holds: bool) -> None:
    assert place((entry,), request_, SHARED) == (SPOT if holds else LLAMA)


def test_the_first_rule_that_holds_decides() -> None:
    rules = (rule(H200, min_prompt_tokens=1000), BATCH_TO_SPOT)
    assert place(rules, placed(service_class="batch", tokens=2000), SHARED) == H200
    assert place(rules, placed(service_class="batch"), SHARED) == SPOT


def test_tenant_with_own_pools_leaves_them_only_by_a_rule_naming_it() -> None:
    pools = Usable(own=(ACMES,), shared=(LLAMA, SPOT))
    batch = placed(ACME, "gold", "batch")
    assert place((BATCH_TO_SPOT,), batch, pools) == ACMES
    assert place((replace_tenants(BATCH_TO_SPOT, ACME),), batch, pools) == SPOT
    own = Usable(own=(ACMES, SPOT))
    assert place((BATCH_TO_SPOT,), batch, own) == SPOT, "of its own, every rule may choose"


def replace_tenants(entry: PlacementEntry, *tenants: TenantId) -> PlacementEntry:
    return PlacementEntry(entry.target_pool, entry.classes, entry.tiers, tenants)


def test_rule_never_opens_a_dedicated_pool() -> None:
    named = rule(ACMES, tenants=(GLOBEX,))
    assert place((named,), placed(), Usable(shared=(LLAMA, SPOT))) == LLAMA


def test_worked_example_of_the_prologue() -> None:
    rules = (BATCH_TO_SPOT, rule(H200, min_predicted_ttft_ms=800))
    for ms, expected in ((300.0, LLAMA), (800.0, H200), (900.0, H200), (None, H200)):
        assert place(rules, placed(), SHARED, lambda _pool, ms=ms: ms) == expected
    assert place(rules, placed(service_class="batch"), SHARED, lambda _: 900.0) == SPOT
    assert place(rules, placed(), SHARED) == LLAMA, "nobody predicts at admission"


def test_prediction_is_for_the_pool_that_would_answer_without_the_rule() -> None:
    asked: list[PoolName] = []

    def predict(pool_: PoolName) -> float:
        asked.append(pool_)
        return 900.0 if pool_ == SPOT else 0.0

    rules = (rule(H200, min_predicted_ttft_ms=800), rule(SPOT, tiers=("free",)))
    assert place(rules, placed(), SHARED, predict) == H200
    assert asked == [SPOT]


def test_a_prompt_goes_where_it_fits() -> None:
    pools = (pool(LLAMA), pool(SPOT, window_tokens=32_768))
    book = Catalogue(snapshot(pools=pools, models=(base(LLAMA),)), "test")
    model = book.resolve(GLOBEX, LLAMA)
    assert model is not None
    assert book.placed(model, placed(tokens=2047)).pool == LLAMA
    long = book.placed(model, placed(tokens=2048))
    assert (long.pool, long.context_window_tokens, long.other_pools) == (SPOT, 32_768, (LLAMA,))
    assert book.placed(model, placed(tokens=40_000)).pool == LLAMA, "it fits nowhere: its own pool says so"


# policies


def test_pool_uses_its_models_policy_unless_one_names_it() -> None:
    models = routing(BATCH_TO_SPOT, retry_max_attempts=2)
    named = (
        routing(),
        replace_pools(models, "llama-policy", LLAMA),
        replace_pools(routing(retry_max_attempts=5), "spot", SPOT),
    )
    book = Catalogue(snapshot(routing=tuple(named)), "test")
    assert book.routing_for(FP8).name == "llama-policy"
    assert book.routing_for(SPOT).name == "spot"


def replace_pools(entry: RoutingEntry, name: str, *pools: str) -> RoutingEntry:
    return msgspec.structs.replace(entry, name=name, pools=pools)


# takeover


def test_takeover_pools_by_reason_and_class() -> None:
    others = (LLAMA, FP8, SPOT)
    assert takeovers(others, "saturated", "interactive", (ACMES, FP8)) == [LLAMA, SPOT]
    assert takeovers(others, "saturated", "batch", (ACMES,)) == [], "batch waits, and fills no dearer pool"
    assert takeovers(others, "unavailable", "batch", (ACMES,)) == [LLAMA, FP8, SPOT]
    assert takeovers(others, "unavailable", "batch", ("a", "b", "c", "d")) == [], "no walk through all there are"  # type: ignore[arg-type]


def test_takeover_pools_of_a_full_pool() -> None:
    book = catalogue()
    assert book.takeover_pools(LLAMA) == [FP8, SPOT]
    assert book.takeover_pools(ACMES) == [LLAMA, FP8, SPOT]
    assert book.takeover_pools(INITECHS) == [], "its tenant uses no other"
    assert takeover_pools(pool(LLAMA), (pool(LLAMA),), {}) == []


# no request reaches another tenant's replica, whatever is declared

NAMES = st.sampled_from([TenantId(name) for name in "abcd"])
USES = st.sampled_from(["shared", "preferred", "dedicated"])
CLASSES = st.sampled_from(["interactive", "near-real-time", "batch"])
POOL_NAMES = [PoolName(name) for name in ("m", "m1", "m2", "m3")]


@st.composite
def rigs(draw: st.DrawFn) -> Catalogue:
    tenants = tuple(TenantEntry(TenantId(name), "t", ("*",), pools=draw(USES)) for name in "abcd")
    pools = tuple(
        PoolEntry(
            name,
            draw(st.sampled_from([100, 1000])),
            model="" if name == "m" else "m",
            dedicated_to=tuple(sorted(draw(st.sets(NAMES, max_size=2)))),
        )
        for name in POOL_NAMES
    )
    rules = tuple(
        PlacementEntry(
            draw(st.sampled_from(POOL_NAMES)),
            classes=tuple(draw(st.sets(CLASSES, max_size=2))),
            tenants=tuple(draw(st.sets(NAMES, max_size=2))),
            min_predicted_ttft_ms=draw(st.none() | st.integers(0, 100)),
        )
        for _ in range(draw(st.integers(0, 4)))
    )
    small = snapshot(*rules, tenants=tenants, pools=pools, models=(base(POOL_NAMES[0]),))
    return Catalogue(small, "test")


@settings(max_examples=80, deadline=None)
@given(rigs(), NAMES, CLASSES, st.integers(1, 2000), st.none() | st.floats(0, 200))
def test_no_decision_yields_another_tenants_pool(
    book: Catalogue, tenant: TenantId, service_class: ServiceClass, tokens: int, ms: float | None
) -> None:
    """Resolve, place with and without predictions, and take over in any order: every pool reached is shared or the
    tenant's own, and only its own if the tenant shares none.
    """
    model = book.resolve(tenant, "m")
    its = book.usable(tenant, POOL_NAMES[0]).in_order
    if model is None:
        assert its == ()
        return
    request_ = Placed(tenant, "t", service_class, tokens)
    starts = frozenset((model.pool, book.placed(model, request_).pool, book.placed(model, request_, lambda _: ms).pool))
    reached = set(starts)
    for start in starts:
        here = book.in_pool(model, start)
        reached.update(here.other_pools)
        reached.update(book.in_pool(here, name).pool for name in POOL_NAMES)
    for name in reached:
        owners = book.pools[name].dedicated_to
        assert not owners or tenant in owners
        assert owners or book.tenants[tenant].pools != "dedicated"
    assert set(its) == {model.pool, *model.other_pools}


def replica(name: str) -> ReplicaView:
    return ReplicaView(
        id=name, pool=ACMES, host="h", port=1, phase="ready", running=0, waiting=0, kv_usage_ratio=0.0,
        adapters=frozenset(), service_ms=1.0, prefill_ms_per_token=0.1,
    )  # type: ignore[arg-type]  # fmt: skip


@pytest.mark.parametrize(("tenant", "comes"), [(ACME, True), (GLOBEX, False), (TenantId(""), False)])
@pytest.mark.parametrize("size", [1, 40])
def test_candidates_check_dedication_again(tenant: TenantId, comes: bool, size: int) -> None:
    """Even a mistake, or a snapshot swapped meanwhile, does not send a request to another tenant's replica."""
    view = PoolView(ACMES, tuple(replica(f"r{number:02}") for number in range(size)), frozenset({ACME}))
    request_ = RouteRequest(ACMES, False, 10, "key", tenant=tenant)  # type: ignore[arg-type]
    decision = decide(request_, view, routing(), {})
    assert comes is not isinstance(decision, NoReplica)
    if isinstance(decision, NoReplica):
        assert decision.reason == "dedicated"
