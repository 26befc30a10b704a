"""Adapter plans: the double buffer, the limit, and reasons for whatever is not loaded."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from functions.api import snapshot as snapshots
from functions.api.ids import Digest, EngineName, ModelId, PoolName, engine_name
from functions.api.snapshot import ModelEntry, PoolEntry, Snapshot, VersionEntry
from functions.decisions import adapters
from functions.decisions.adapters import (
    AdapterPlan,
    AdapterPolicy,
    AdapterState,
    EngineAdapters,
    WantedAdapter,
)

POLICY = AdapterPolicy(max_adapters=3, grace_s=30.0, withdraw_s=3.0)


def digest(text: str) -> Digest:
    return Digest("sha256:" + hashlib.sha256(text.encode()).hexdigest())


def wanted(*names: str) -> tuple[WantedAdapter, ...]:
    return tuple(WantedAdapter(EngineName(name), digest(name), f"s3://shoal-models/{name}") for name in names)


def names(*texts: str) -> frozenset[EngineName]:
    return frozenset(EngineName(text) for text in texts)


@dataclass
class Engine:
    """An engine that does what plans say, a second a step."""

    policy: AdapterPolicy = POLICY
    loaded: set[EngineName] = field(default_factory=set)
    busy: set[EngineName] = field(default_factory=set)
    state: AdapterState = field(default_factory=AdapterState)
    now_s: float = 0.0
    history: list[str] = field(default_factory=list)

    def step(self, want: Sequence[WantedAdapter], seconds: float = 1.0) -> AdapterPlan:
        self.now_s += seconds
        engine = EngineAdapters(frozenset(self.loaded), frozenset(self.busy))
        plan = adapters.plan(tuple(want), engine, self.state, self.now_s, self.policy)
        self.state = plan.state
        for name in plan.unload:
            self.loaded.discard(name)
            self.history.append(f"{self.now_s:.0f} unload {name}")
        for adapter in plan.load:
            self.loaded.add(adapter.name)
            self.history.append(f"{self.now_s:.0f} load {adapter.name}")
        return plan


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
    found = adapters.wanted_in(
        snapshot(
            model("acme/bot", ["v1", "v2", "v3"], {"stable": "v2", "canary": "v3"}),
            model("acme/zoo", ["v1"], {"stable": "v1"}),
        ),
        PoolName("base"),
    )
    order = [adapter.name for adapter in found]
    assert order[:2] == sorted([_name("acme/bot", "v2"), _name("acme/zoo", "v1")])
    assert order[2:] == [_name("acme/bot", "v3"), _name("acme/bot", "v1")]


def test_other_pools_and_base_models_are_not_ours() -> None:
    base = ModelEntry(ModelId("base"), PoolName("base"), "base", (), {})
    found = adapters.wanted_in(
        snapshot(base, model("acme/bot", ["v1"], {"stable": "v1"}, pool="other")), PoolName("base")
    )
    assert found == ()


def test_two_versions_with_one_digest_are_one_adapter() -> None:
    twice = model("acme/bot", ["v1"], {"stable": "v1"})
    same = VersionEntry("v2", twice.versions[0].digest, twice.versions[0].engine_name, "s3://y")
    entry = ModelEntry(twice.id, twice.pool, "lora", (*twice.versions, same), {"stable": "v2"})
    assert len(adapters.wanted_in(snapshot(entry), PoolName("base"))) == 1


def _name(model_id: str, version: str) -> EngineName:
    return engine_name(ModelId(model_id), digest(model_id + version))


def test_a_new_version_is_loaded_beside_the_old_which_leaves_after_its_grace() -> None:
    engine = Engine()
    engine.step(wanted("v1"))
    for _ in range(40):
        engine.step(wanted("v2"))
    assert engine.history == ["1 load v1", "2 load v2", "35 unload v1"]


def test_it_is_no_longer_advertised_before_it_is_unloaded() -> None:
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


def test_wanted_again_starts_the_grace_anew() -> None:
    engine = Engine(loaded=set(names("v1")))
    for _ in range(20):
        engine.step(wanted("v2"))
    engine.step(wanted("v1", "v2"))
    for _ in range(32):
        engine.step(wanted("v2"))
    assert EngineName("v1") in engine.loaded


def test_what_does_not_fit_is_named() -> None:
    plan = Engine().step(wanted("a", "b", "c", "d"))
    assert [adapter.name for adapter in plan.load] == ["a", "b", "c"]
    assert plan.left_out == {"d": "over this replica's limit of 3 adapters"}
    assert plan.reason == "d: over this replica's limit of 3 adapters"


def test_a_full_engine_waits_for_the_drained_to_leave() -> None:
    engine = Engine(loaded=set(names("a", "b", "c")))
    plan = engine.step(wanted("a", "b", "new"))
    assert plan.load == ()
    assert plan.left_out == {"new": "waits for an adapter that is being drained"}
    for _ in range(34):
        plan = engine.step(wanted("a", "b", "new"))
    assert EngineName("new") in engine.loaded
    assert engine.step(wanted("a", "b", "new")).left_out == {}


def test_a_failed_load_waits_twice_as_long_each_time_and_tells_why() -> None:
    state = AdapterState()
    now_s = 0.0
    waits = []
    for _ in range(8):
        state = adapters.failed(state, EngineName("a"), "corrupt", now_s, POLICY)
        tried_s = now_s
        while True:
            now_s += 0.5
            plan = adapters.plan(wanted("a"), EngineAdapters(frozenset()), state, now_s, POLICY)
            assert plan.left_out[EngineName("a")].startswith("corrupt")
            if plan.load:
                break
        waits.append(now_s - tried_s)
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60]


def test_a_failure_is_forgotten_once_it_is_loaded_or_no_longer_wanted() -> None:
    state = adapters.failed(AdapterState(), EngineName("a"), "corrupt", 0.0, POLICY)
    loaded = adapters.plan(wanted("a"), EngineAdapters(names("a")), state, 1.0, POLICY)
    assert (loaded.state.failures, loaded.reason) == ({}, "")
    dropped = adapters.plan((), EngineAdapters(frozenset()), state, 1.0, POLICY)
    assert dropped.state.failures == {}


def test_one_failure_does_not_hold_up_the_others() -> None:
    state = adapters.failed(AdapterState(), EngineName("a"), "corrupt", 0.0, POLICY)
    plan = adapters.plan(wanted("a", "b"), EngineAdapters(frozenset()), state, 0.5, POLICY)
    assert [adapter.name for adapter in plan.load] == ["b"]


def test_the_reason_is_short_and_names_failures_first() -> None:
    many = wanted(*(f"m{number:04}" for number in range(1000)))
    state = adapters.failed(AdapterState(), EngineName("m0002"), "corrupt", 0.0, POLICY)
    reason = adapters.plan(many, EngineAdapters(frozenset()), state, 0.5, POLICY).reason
    assert reason.startswith("m0002: corrupt (failed 1 times); m0003: over this replica's limit")
    assert reason.endswith("and 994 more")


def test_what_is_being_loaded_is_not_loaded_twice_and_takes_room() -> None:
    engine = EngineAdapters(names("a"), loading=names("b"))
    plan = adapters.plan(wanted("a", "b", "c", "d")[:3], engine, AdapterState(), 1.0, POLICY)
    assert [adapter.name for adapter in plan.load] == ["c"]


def test_a_restarted_engine_is_filled_again() -> None:
    engine = Engine()
    engine.step(wanted("a", "b"))
    engine.loaded.clear()
    engine.step(wanted("a", "b"))
    assert engine.loaded == names("a", "b")


_NAMES = st.sampled_from(["a", "b", "c", "d", "e"])
_STEPS = st.lists(st.tuples(st.lists(_NAMES, unique=True), st.frozensets(_NAMES), st.integers(1, 20)), max_size=40)


@given(_STEPS)
def test_the_laws_hold_for_any_history(steps: list[tuple[list[str], frozenset[str], int]]) -> None:
    engine = Engine()
    dropped_s: dict[EngineName, float] = {}
    for want, busy, seconds in steps:
        engine.busy = {EngineName(name) for name in busy}
        before = set(engine.loaded)
        plan = engine.step(wanted(*want), float(seconds))
        fitting = {EngineName(name) for name in want[: POLICY.max_adapters]}
        dropped_s = {name: dropped_s.get(name, engine.now_s) for name in before if name not in fitting}
        assert len(engine.loaded) <= POLICY.max_adapters
        assert len(before) <= POLICY.max_adapters
        for name in plan.unload:
            assert name not in fitting
            assert name not in engine.busy
            assert name not in plan.advertise
            assert engine.now_s - dropped_s[name] >= POLICY.grace_s + POLICY.withdraw_s
        surplus = {EngineName(name) for name in want[POLICY.max_adapters :]}
        assert (fitting - engine.loaded) | surplus == set(plan.left_out)
        assert set(plan.advertise) <= before


@given(st.lists(st.lists(_NAMES, unique=True, max_size=3), max_size=10), st.lists(_NAMES, unique=True, max_size=3))
def test_every_history_ends_with_exactly_what_is_wanted(past: list[list[str]], last: list[str]) -> None:
    engine = Engine()
    for want in past:
        engine.step(wanted(*want))
    for _ in range(80):
        engine.step(wanted(*last))
    assert engine.loaded == {EngineName(name) for name in last}
