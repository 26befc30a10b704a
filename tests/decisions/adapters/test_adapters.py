"""Adapter plans: old and new versions side by side, the slot limit, and a reason for each adapter that is not
loaded.
"""

from collections.abc import Sequence

import msgspec

from functions.api import snapshot as snapshots
from functions.api.ids import EngineName, ModelId, PoolName, RolloutId, engine_name
from functions.api.snapshot import ModelEntry, PoolEntry, Snapshot, SplitEntry, VersionEntry
from functions.decisions.adapters import plan as adapters
from functions.decisions.adapters.plan import AdapterDemand, AdapterPolicy, AdapterState, EngineAdapters
from tests.decisions.adapters.adapter_engine import POLICY, Engine, digest, names, wanted
from tests.pools_rig import ACME, LLAMA, adapter, base, pool
from tests.pools_rig import snapshot as pools_snapshot


def model(name: str, versions: Sequence[str], channels: dict[str, str], pool: str = "base") -> ModelEntry:
    model_id = ModelId(name)
    return ModelEntry(
        id=model_id,
        pool=PoolName(pool),
        type="lora",
        versions=tuple(
            VersionEntry(version, digest(name + version), engine_name(model_id, digest(name + version)), "s3://x")
            for version in versions
        ),
        channels=channels,
    )


def snapshot(*models: ModelEntry) -> Snapshot:
    pools = tuple(PoolEntry(PoolName(name), 2048) for name in ("base", "other"))
    return Snapshot(snapshots.SCHEMA_VERSION, 1, "test", 0.0, (), (), models, pools)


def test_the_default_channel_comes_first_then_other_channels_then_the_rest() -> None:
    found = adapters.build_demand(
        snapshot(
            model("acme/bot", ["v1", "v2", "v3"], {"stable": "v2", "canary": "v3"}),
            model("acme/zoo", ["v1"], {"stable": "v1"}),
        ),
        PoolName("base"),
    )
    order = [adapter.name for adapter in found.ranked]
    assert order[:2] == sorted([_name("acme/bot", "v2"), _name("acme/zoo", "v1")])
    assert order[2:] == [_name("acme/bot", "v3"), _name("acme/bot", "v1")]


def test_dedicated_pool_prefetches_only_its_tenants_adapters() -> None:
    """The pool loads other tenants' adapters only on request: no prefetch, no pin."""
    its = PoolEntry(PoolName("acmes"), 2048, model=LLAMA, dedicated_to=(ACME,))
    small = pools_snapshot(pools=(its, pool(LLAMA)), models=(adapter("acme"), adapter("globex"), base(LLAMA)))
    demand = adapters.build_demand(small, its.name)
    assert sorted(name.partition("@")[0] for name in demand.by_name) == ["acme/bot", "globex/bot"]
    assert [each.name.partition("@")[0] for each in demand.ranked] == ["acme/bot"]
    made = adapters.plan(demand, EngineAdapters(frozenset()), AdapterState(), 100.0, AdapterPolicy(max_adapters=8))
    assert [each.name.partition("@")[0] for each in made.load] == ["acme/bot"]


def test_demand_excludes_other_pools_and_base_models() -> None:
    base = ModelEntry(ModelId("base"), PoolName("base"), "base", (), {})
    found = adapters.build_demand(
        snapshot(base, model("acme/bot", ["v1"], {"stable": "v1"}, pool="other")), PoolName("base")
    )
    assert found.ranked == ()


def test_two_versions_with_one_digest_are_one_adapter() -> None:
    twice = model("acme/bot", ["v1"], {"stable": "v1"})
    same = VersionEntry("v2", twice.versions[0].digest, twice.versions[0].engine_name, "s3://y")
    entry = ModelEntry(twice.id, twice.pool, "lora", (*twice.versions, same), {"stable": "v2"})
    assert len(adapters.build_demand(snapshot(entry), PoolName("base")).ranked) == 1


def test_rollout_candidates_and_controls_rank_first() -> None:
    split = SplitEntry("stable", RolloutId("ro-00000000"), 1, 10, "v2")
    rolling = msgspec.structs.replace(model("acme/zoo", ["v1", "v2", "v3"], {"stable": "v1"}), splits=(split,))
    arriving = model("acme/bot", ["v1", "v2", "v3"], {"stable": "v1", "incoming": "v2", "incoming-2": "v3"})
    found = adapters.build_demand(
        snapshot(arriving, model("acme/ant", ["v1"], {"stable": "v1"}), rolling), PoolName("base")
    )
    bot = [_name("acme/bot", "v1"), *sorted([_name("acme/bot", "v2"), _name("acme/bot", "v3")])]
    moving = [*bot, _name("acme/zoo", "v1"), _name("acme/zoo", "v2")]
    assert found.moving == tuple(moving)
    assert [adapter.name for adapter in found.ranked] == [*moving, _name("acme/ant", "v1"), _name("acme/zoo", "v3")]


def test_rollouts_of_one_tenant_do_not_crowd_out_another() -> None:
    greedy = [model(f"acme/a{n}", ["v1", "v2"], {"stable": "v1", "incoming": "v2"}) for n in range(40)]
    bot = model("globex/bot", ["v1", "v2"], {"stable": "v1", "incoming": "v2"})
    demand = adapters.build_demand(snapshot(*greedy, bot), PoolName("base"))
    both = ("v1", "v2")
    first = [("acme/a0", both), ("globex/bot", both), ("acme/a1", both), ("acme/a10", both)]
    assert demand.moving[:8] == tuple(_name(id_, version) for id_, versions in first for version in versions)
    made = adapters.plan(
        demand, EngineAdapters(frozenset()), AdapterState(), 0.0, AdapterPolicy(max_adapters=16, max_prefetches=16)
    )
    assert _name("globex/bot", "v2") in {adapter.name for adapter in made.load}
    assert _name("acme/a10", "v2") not in made.without_room
    assert made.without_room == demand.moving[8:]


def test_model_with_many_versions_does_not_separate_other_models_versions() -> None:
    """A turn is one model: three versions take two turns."""
    many = model("acme/ant", ["v1", "v2", "v3"], {"stable": "v1", "incoming": "v2", "incoming-2": "v3"})
    zoo = model("acme/zoo", ["v1", "v2"], {"stable": "v1", "incoming": "v2"})
    bot = model("globex/bot", ["v1", "v2"], {"stable": "v1", "incoming": "v2"})
    cat = model("globex/cat", ["v1", "v2"], {"stable": "v1", "incoming": "v2"})
    demand = adapters.build_demand(snapshot(zoo, many, cat, bot), PoolName("base"))
    ids = [name.partition("@")[0] for name in demand.moving]
    assert ids == ["acme/ant"] * 2 + ["globex/bot"] * 2 + ["acme/ant"] + ["globex/cat"] * 2 + ["acme/zoo"] * 2


def _name(model_id: str, version: str) -> EngineName:
    return engine_name(ModelId(model_id), digest(model_id + version))


def test_new_version_loads_beside_the_old_one_until_its_grace_ends() -> None:
    engine = Engine()
    engine.step(wanted("v1"))
    for _ in range(40):
        engine.step(wanted("v2"))
    assert engine.history == ["1 load v1", "2 load v2", "35 unload v1"]


def test_adapter_is_withdrawn_from_heartbeats_before_it_unloads() -> None:
    engine = Engine(loaded={EngineName("v1")})
    seen = [engine.step(wanted("v2")).advertise for _ in range(34)]
    assert seen[29] == ("v1", "v2")
    assert seen[30] == ("v2",)
    assert "v1" in engine.loaded or engine.history[-1] == "34 unload v1"
    assert EngineName("v1") not in engine.loaded


def test_a_busy_adapter_is_never_unloaded() -> None:
    engine = Engine(loaded=set(names("v1")), busy=set(names("v1")))
    for _ in range(300):
        engine.step(wanted("v2"))
    assert EngineName("v1") in engine.loaded
    engine.busy.clear()
    for _ in range(5):
        engine.step(wanted("v2"))
    assert EngineName("v1") not in engine.loaded


def test_adapter_wanted_again_restarts_its_grace_period() -> None:
    engine = Engine(loaded=set(names("v1")))
    for _ in range(20):
        engine.step(wanted("v2"))
    engine.step(wanted("v1", "v2"))
    for _ in range(32):
        engine.step(wanted("v2"))
    assert EngineName("v1") in engine.loaded


def test_adapters_that_do_not_fit_wait_for_a_first_request() -> None:
    plan = Engine().step(wanted("a", "b", "c", "d"))
    assert [adapter.name for adapter in plan.load] == ["a", "b", "c"]
    assert (plan.cold, plan.reason) == (1, "")


def test_rollout_version_over_the_limit_is_named() -> None:
    plan = Engine().step(wanted("a", "b", "c", "d", need="moving"))
    assert plan.left_out[EngineName("d")] == "over this replica's limit of 3 adapters"
    assert "d: over this replica's limit of 3 adapters" in plan.reason


def test_full_engine_waits_for_draining_adapters() -> None:
    engine = Engine(loaded=set(names("a", "b", "c")))
    plan = engine.step(wanted("a", "b", "new"))
    assert plan.load == ()
    assert plan.left_out == {"new": "waits for an adapter that is being drained"}
    for _ in range(34):
        plan = engine.step(wanted("a", "b", "new"))
    assert EngineName("new") in engine.loaded
    assert engine.step(wanted("a", "b", "new")).left_out == {}


def test_failed_load_retries_with_doubling_delay_and_reports_the_reason() -> None:
    state = AdapterState()
    now_s = 0.0
    waits = []
    for _ in range(8):
        state = adapters.record_failed_load(state, EngineName("a"), "corrupt", now_s, POLICY)
        tried_s = now_s
        while True:
            now_s += 0.5
            plan = adapters.plan(wanted("a"), EngineAdapters(frozenset()), state, now_s, POLICY)
            assert plan.left_out[EngineName("a")].startswith("corrupt")
            if plan.load:
                break
        waits.append(now_s - tried_s)
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60]


def test_failure_is_cleared_once_loaded_or_no_longer_wanted() -> None:
    state = adapters.record_failed_load(AdapterState(), EngineName("a"), "corrupt", 0.0, POLICY)
    loaded = adapters.plan(wanted("a"), EngineAdapters(names("a")), state, 1.0, POLICY)
    assert (loaded.state.failures, loaded.reason) == ({}, "")
    dropped = adapters.plan(AdapterDemand(), EngineAdapters(frozenset()), state, 1.0, POLICY)
    assert dropped.state.failures == {}


def test_one_failure_does_not_hold_up_the_others() -> None:
    state = adapters.record_failed_load(AdapterState(), EngineName("a"), "corrupt", 0.0, POLICY)
    plan = adapters.plan(wanted("a", "b"), EngineAdapters(frozenset()), state, 0.5, POLICY)
    assert [adapter.name for adapter in plan.load] == ["b"]


def test_the_reason_is_short_and_names_failures_first() -> None:
    many = wanted(*(f"m{number:04}" for number in range(1000)), need="moving")
    state = adapters.record_failed_load(AdapterState(), EngineName("m0002"), "corrupt", 0.0, POLICY)
    reason = adapters.plan(many, EngineAdapters(frozenset()), state, 0.5, POLICY).reason
    assert reason.startswith("m0002: corrupt (failed 1 times); m0003: over this replica's limit")
    assert reason.endswith("more")
    assert len(reason) < 400


def test_adapter_that_is_loading_is_not_loaded_twice_and_uses_a_slot() -> None:
    engine = EngineAdapters(names("a"), loading=names("b"))
    plan = adapters.plan(wanted("a", "b", "c"), engine, AdapterState(), 1.0, POLICY)
    assert [adapter.name for adapter in plan.load] == ["c"]


def test_a_restarted_engine_is_filled_again() -> None:
    engine = Engine()
    engine.step(wanted("a", "b"))
    engine.loaded.clear()
    engine.step(wanted("a", "b"))
    assert engine.loaded == names("a", "b")
