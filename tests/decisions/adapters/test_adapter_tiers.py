"""Adapter plans of replicas that cannot load every adapter: cold loads, headroom, evictions and invariants."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from functions.api.ids import EngineName
from functions.decisions.adapters import plan as adapters
from functions.decisions.adapters.plan import AdapterDemand, AdapterPolicy, AdapterState, EngineAdapters, WantedAdapter
from tests.decisions.adapters.adapter_engine import POLICY, Engine, names, one, wanted

ROOMY = AdapterPolicy(max_adapters=4, grace_s=30.0, withdraw_s=3.0, hold_s=5.0)  # headroom 1
FIVE = wanted("a", "b", "c", "d", "e")


@pytest.mark.parametrize(
    ("places", "headroom"), [(0, 0), (2, 0), (3, 0), (4, 1), (8, 1), (16, 2), (64, 8), (4096, 512)]
)
def test_headroom_is_an_eighth(places: int, headroom: int) -> None:
    assert AdapterPolicy(max_adapters=places).headroom == headroom


def test_cold_load_uses_headroom_and_lru_eviction_restores_it() -> None:
    engine = Engine(ROOMY)
    engine.step(FIVE)
    assert engine.loaded == names("a", "b", "c")
    engine.busy = set(names("a"))
    engine.step(FIVE)
    engine.busy = set(names("b", "c"))
    engine.step(FIVE)
    engine.busy.clear()
    engine.step(FIVE, 10.0)
    assert engine.request_load(FIVE, "e") == "accepted"
    engine.step(FIVE, 0.0)
    assert engine.loaded == names("a", "b", "c", "e"), "at once"
    plan = engine.step(FIVE)
    assert plan.advertise == ("b", "c", "e"), "the least recently used leaves"
    for _ in range(3):
        plan = engine.step(FIVE)
    assert engine.history[-1] == "16 unload a"
    for _ in range(30):
        plan = engine.step(FIVE)
    assert engine.loaded == {"b", "c", "e"}
    assert (plan.room, plan.cold) == (1, 2), "nobody comes back unasked"


def test_cold_loads_run_in_request_order_and_before_prefetches() -> None:
    engine = Engine(ROOMY)
    assert engine.request_load(FIVE, "e") == "accepted"
    engine.now_s += 0.1
    assert engine.request_load(FIVE, "d") == "accepted"
    plan = engine.step(FIVE)
    assert [adapter.name for adapter in plan.load] == ["e", "d", "a"]


def test_cold_load_without_room_waits_for_the_idle_adapter_to_unload() -> None:
    engine = Engine(replace(ROOMY, hold_s=0.0), loaded=set(names("a", "b", "c", "d")), busy=set(names("a", "b", "c")))
    engine.request_load(FIVE, "e")
    plan = engine.step(FIVE)
    assert (plan.refused, plan.load, plan.advertise) == ({}, (), ("a", "b", "c"))
    for _ in range(4):
        engine.step(FIVE)
    assert engine.history == ["4 unload d", "5 load e"]


def test_cold_load_is_refused_at_once_if_all_adapters_are_busy() -> None:
    engine = Engine(ROOMY, loaded=set(names("a", "b", "c", "d")), busy=set(names("a", "b", "c", "d")))
    engine.request_load(FIVE, "e")
    plan = engine.step(FIVE)
    assert plan.refused[EngineName("e")].startswith("all 4 adapters of this replica are busy")
    assert plan.state.cold_loads == {}


def test_recently_used_adapter_is_not_evicted() -> None:
    engine = Engine(ROOMY, loaded=set(names("a", "b", "c", "d")))
    for name in "abcd":
        assert engine.request_load(FIVE, name) == "loaded"
    engine.request_load(FIVE, "e")
    for _ in range(4):
        plan = engine.step(FIVE)
        assert (plan.refused, plan.advertise) == ({}, ("a", "b", "c", "d")), "it waits, and nobody leaves yet"
    assert len(engine.step(FIVE).advertise) == 2, "one for the want, one for the headroom"


def test_withdrawn_adapter_that_is_requested_stays() -> None:
    engine = Engine(ROOMY, loaded=set(names("a", "b", "c", "d")))
    assert engine.step(FIVE).advertise == ("b", "c", "d"), "the headroom is missing"
    assert engine.request_load(FIVE, "a") == "loaded"
    assert "a" in engine.step(FIVE).advertise
    for _ in range(20):
        engine.step(FIVE)
    assert engine.loaded == names("a", "c", "d")


def test_withdrawn_adapter_with_a_long_request_stays_and_another_unloads() -> None:
    two = replace(ROOMY, max_adapters=2, hold_s=0.0)
    engine = Engine(two, loaded=set(names("a", "b")))
    engine.request_load(FIVE, "e")
    assert engine.step(FIVE).advertise == ("b",)
    engine.busy = set(names("a"))  # sent by a gateway that had not yet seen the withdrawal
    for _ in range(12):
        plan = engine.step(FIVE)
    assert engine.loaded == names("a", "e")
    assert plan.advertise == ("a", "e"), "it serves again, since it is there"


def test_unwanted_adapters_with_long_requests_do_not_block_cold_loads() -> None:
    engine = Engine(ROOMY, loaded=set(names("a", "b", "c", "d")), busy=set(names("a", "d")))
    without_the_busy = wanted("b", "c", "e", "f", "g")
    for _ in range(40):
        engine.step(without_the_busy)
    assert engine.request_load(without_the_busy, "e") == "accepted"
    for _ in range(12):
        engine.step(without_the_busy)
    assert names("a", "d", "e") <= engine.loaded, "the old ones' requests go on"


def test_withdrawn_adapter_that_joins_a_rollout_stays() -> None:
    engine = Engine(ROOMY, loaded=set(names("a", "b", "c", "d")))
    assert engine.step(FIVE).advertise == ("b", "c", "d")
    rolling = wanted("moving:a", "moving:x", "b", "c", "d")
    for _ in range(20):
        assert "a" in engine.step(rolling).advertise
    assert not any(line.endswith("unload a") for line in engine.history)


def test_adapter_requested_during_a_failed_unload_stays() -> None:
    engine = Engine(ROOMY, loaded=set(names("a", "b", "c", "d")))
    assert engine.step(FIVE).advertise == ("b", "c", "d")
    engine.loaded.discard(EngineName("a"))  # the engine's state while it handles the unload request
    assert engine.request_load(FIVE, "a") == "accepted"
    engine.loaded.add(EngineName("a"))  # the unload failed
    assert "a" in engine.step(FIVE).advertise


def test_eviction_order_is_unnamed_first_then_longest_loaded() -> None:
    demand = wanted("a", "b", "c", "d", "unnamed:x", "unnamed:y")
    for first, second, leaves in (("b", "a", "b"), ("a", "x", "x"), ("y", "x", "y")):
        engine = Engine(ROOMY, loaded=set(names(first)), busy=set(names("c", "d")))
        engine.step(demand)
        engine.loaded = set(names(first, second, "c", "d"))
        hidden = engine.loaded - set(engine.step(demand).advertise)
        assert hidden == names(leaves)


def test_nothing_unloads_while_heartbeats_do_not_reach_gateways() -> None:
    engine = Engine(ROOMY, loaded=set(names("a", "b", "c", "d")), heard=False)
    for _ in range(60):
        engine.step(FIVE)
    assert engine.loaded == names("a", "b", "c", "d")
    engine.heard = True
    for _ in range(3):
        engine.step(FIVE)
    assert engine.loaded == names("b", "c", "d")


def test_rollout_version_evicts_idle_adapters() -> None:
    rolling = wanted("moving:v1", "moving:v2", "a", "b", "c")
    engine = Engine(ROOMY, loaded=set(names("v1", "a", "b", "c")))
    plan = engine.step(rolling)
    assert plan.left_out == {"v2": "waits for an adapter that is being drained"}
    for _ in range(20):
        plan = engine.step(rolling)
    assert {"v1", "v2"} < engine.loaded
    assert (len(engine.loaded), plan.left_out) == (3, {})


def test_channel_versions_stay_if_a_slot_remains_for_cold_loads() -> None:
    demand = wanted("a", "b", "c", "unnamed:x", "unnamed:y")
    engine = Engine(ROOMY)
    for name in ("x", "y", "x", "y"):
        engine.request_load(demand, name)
        for _ in range(10):
            engine.step(demand)
        assert {"a", "b", "c"} <= engine.loaded
        assert engine.loaded <= names("a", "b", "c", "x", "y")
    assert "7 unload x" not in engine.history[:3]
    assert any("load y" in line for line in engine.history)


def test_cold_load_expires_at_its_deadline() -> None:
    engine = Engine(replace(ROOMY, hold_s=0.0), loaded=set(names("a", "b", "c", "d")), busy=set(names("a", "b", "c")))
    engine.request_load(FIVE, "e", wait_s=1.0)
    engine.step(FIVE, 0.5)
    assert "e" in engine.state.cold_loads
    engine.step(FIVE, 1.0)
    assert engine.state.cold_loads == {}


@pytest.mark.parametrize(("refused", "answer"), [(True, "refused"), (False, "failed")])
def test_recently_failed_load_is_answered_without_a_retry(refused: bool, answer: str) -> None:
    engine = Engine(ROOMY)
    engine.state = adapters.record_failed_load(engine.state, EngineName("e"), "corrupt", 0.0, ROOMY, refused=refused)
    assert engine.request_load(FIVE, "e") == answer
    engine.now_s = 1.0
    assert engine.request_load(FIVE, "e") == "accepted"


def test_adapter_outside_the_snapshot_is_unknown() -> None:
    engine = Engine(ROOMY)
    assert engine.request_load(FIVE, "z") == "unknown"
    engine.loaded = set(names("z"))
    assert engine.request_load(FIVE, "z") == "loaded", "still in its grace"


def test_pending_cold_loads_are_bounded() -> None:
    many = wanted(*(f"m{number}" for number in range(100)))
    engine = Engine(replace(ROOMY, max_cold_loads=10))
    answers = [engine.request_load(many, f"m{number}") for number in range(20)]
    assert answers == ["accepted"] * 10 + ["full"] * 10
    assert engine.request_load(many, "m3") == "accepted", "one who asks again takes no other place"


def test_plan_for_ten_thousand_adapters_reads_few_entries() -> None:
    class Counting(dict[EngineName, WantedAdapter]):
        reads = 0

        def __getitem__(self, name: EngineName) -> WantedAdapter:
            Counting.reads += 1
            return super().__getitem__(name)

    many = wanted(*(f"m{number:05}" for number in range(10_000)))
    policy = AdapterPolicy(max_adapters=64)
    counting = replace(many, by_name=Counting(many.by_name))
    full = EngineAdapters(frozenset(many.by_name[name].name for name in list(many.by_name)[:56]))
    adapters.plan(counting, full, AdapterState(), 1.0, policy)
    assert Counting.reads < 100


_NAMES = st.sampled_from(["a", "b", "c", "d", "e"])
_NEEDS = st.sampled_from(["moving", "named", "unnamed"])
_WISHES = st.lists(st.tuples(_NEEDS, _NAMES), unique_by=lambda each: each[1])
_STEPS = st.lists(
    st.tuples(_WISHES, st.frozensets(_NAMES), st.lists(_NAMES), st.integers(1, 20), st.booleans()), max_size=40
)


@given(_STEPS, st.integers(1, 5))
def test_the_laws_hold_for_any_history(
    steps: list[tuple[list[tuple[str, str]], frozenset[str], list[str], int, bool]], places: int
) -> None:
    policy = replace(POLICY, max_adapters=places)
    engine = Engine(policy)
    withdrawn_s: dict[EngineName, float] = {}
    for demand, busy, asked, seconds, heard in steps:
        want = AdapterDemand.from_ranked(one(need, name) for need, name in sorted(demand))
        engine.busy, engine.heard = {EngineName(name) for name in busy}, heard
        for name in asked:
            engine.request_load(want, name)
        before = set(engine.loaded)
        plan = engine.step(want, float(seconds))
        assert len(engine.loaded | set(plan.unload)) <= places
        for name in plan.unload:
            assert name not in engine.busy & before
            assert engine.now_s - withdrawn_s[name] >= policy.withdraw_s, "every gateway has heard"
        assert not set(plan.unload) & {adapter.name for adapter in plan.load}
        assert set(plan.advertise) <= before
        hidden = before - set(plan.advertise)
        withdrawn_s = {name: withdrawn_s.get(name, engine.now_s) for name in hidden} if heard else {}
        withdrawn_s |= {} if heard else dict.fromkeys(hidden, engine.now_s)
        assert not plan.refused.keys() & (engine.loaded | plan.state.cold_loads.keys())


@given(st.lists(st.lists(_NAMES, unique=True, max_size=3), max_size=10), st.lists(_NAMES, unique=True, max_size=3))
def test_any_history_ends_with_exactly_the_wanted_adapters_if_all_fit(past: list[list[str]], last: list[str]) -> None:
    engine = Engine()
    for want in past:
        engine.step(wanted(*want))
    for _ in range(80):
        engine.step(wanted(*last))
    assert engine.loaded == {EngineName(name) for name in last}


@given(st.lists(_NAMES, min_size=1, max_size=30))
def test_cold_load_completes_within_one_withdrawal_if_nothing_is_busy(asked: list[str]) -> None:
    """A cold load finishes at most `hold_s`, `withdraw_s` and three passes after the request."""
    engine = Engine(ROOMY)
    for name in asked:
        deadline_s = engine.now_s + ROOMY.hold_s + ROOMY.withdraw_s + 3
        while name not in engine.loaded:
            engine.request_load(FIVE, name)  # a gateway retries after a refusal
            engine.step(FIVE)
            assert engine.now_s <= deadline_s
