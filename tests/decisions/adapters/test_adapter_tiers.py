"""Where not every adapter fits: cold loads, headroom, victims, and the laws that hold for any history."""

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


def test_a_cold_load_takes_the_headroom_and_the_oldest_makes_it_anew() -> None:
    engine = Engine(ROOMY)
    engine.step(FIVE)
    assert engine.loaded == names("a", "b", "c")
    engine.busy = set(names("a"))
    engine.step(FIVE)
    engine.busy = set(names("b", "c"))
    engine.step(FIVE)
    engine.busy.clear()
    engine.step(FIVE, 10.0)
    assert engine.ask(FIVE, "e") == "accepted"
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


def test_wants_are_served_in_the_order_of_asking_and_before_any_prefetch() -> None:
    engine = Engine(ROOMY)
    assert engine.ask(FIVE, "e") == "accepted"
    engine.now_s += 0.1
    assert engine.ask(FIVE, "d") == "accepted"
    plan = engine.step(FIVE)
    assert [adapter.name for adapter in plan.load] == ["e", "d", "a"]


def test_a_want_without_room_waits_for_the_idle_one_to_leave() -> None:
    engine = Engine(replace(ROOMY, hold_s=0.0), loaded=set(names("a", "b", "c", "d")), busy=set(names("a", "b", "c")))
    engine.ask(FIVE, "e")
    plan = engine.step(FIVE)
    assert (plan.refused, plan.load, plan.advertise) == ({}, (), ("a", "b", "c"))
    for _ in range(4):
        engine.step(FIVE)
    assert engine.history == ["4 unload d", "5 load e"]


def test_a_want_is_refused_at_once_where_everything_is_busy() -> None:
    engine = Engine(ROOMY, loaded=set(names("a", "b", "c", "d")), busy=set(names("a", "b", "c", "d")))
    engine.ask(FIVE, "e")
    plan = engine.step(FIVE)
    assert plan.refused[EngineName("e")].startswith("all 4 adapters of this replica are busy")
    assert plan.state.cold_loads == {}


def test_what_was_just_used_is_nobodys_victim() -> None:
    engine = Engine(ROOMY, loaded=set(names("a", "b", "c", "d")))
    for name in "abcd":
        assert engine.ask(FIVE, name) == "loaded"
    engine.ask(FIVE, "e")
    for _ in range(4):
        plan = engine.step(FIVE)
        assert (plan.refused, plan.advertise) == ({}, ("a", "b", "c", "d")), "it waits, and nobody leaves yet"
    assert len(engine.step(FIVE).advertise) == 2, "one for the want, one for the headroom"


def test_one_that_is_leaving_and_is_asked_for_stays() -> None:
    engine = Engine(ROOMY, loaded=set(names("a", "b", "c", "d")))
    assert engine.step(FIVE).advertise == ("b", "c", "d"), "the headroom is missing"
    assert engine.ask(FIVE, "a") == "loaded"
    assert "a" in engine.step(FIVE).advertise
    for _ in range(20):
        engine.step(FIVE)
    assert engine.loaded == names("a", "c", "d")


def test_one_that_a_long_request_keeps_stays_and_another_makes_room() -> None:
    two = replace(ROOMY, max_adapters=2, hold_s=0.0)
    engine = Engine(two, loaded=set(names("a", "b")))
    engine.ask(FIVE, "e")
    assert engine.step(FIVE).advertise == ("b",)
    engine.busy = set(names("a"))  # sent by a gateway that had not heard yet
    for _ in range(12):
        plan = engine.step(FIVE)
    assert engine.loaded == names("a", "e")
    assert plan.advertise == ("a", "e"), "it serves again, since it is there"


def test_old_versions_that_long_requests_keep_hold_up_no_cold_load() -> None:
    engine = Engine(ROOMY, loaded=set(names("a", "b", "c", "d")), busy=set(names("a", "d")))
    without_the_busy = wanted("b", "c", "e", "f", "g")
    for _ in range(40):
        engine.step(without_the_busy)
    assert engine.ask(without_the_busy, "e") == "accepted"
    for _ in range(12):
        engine.step(without_the_busy)
    assert names("a", "d", "e") <= engine.loaded, "the old ones' requests go on"


def test_one_that_is_leaving_and_becomes_part_of_a_rollout_stays() -> None:
    engine = Engine(ROOMY, loaded=set(names("a", "b", "c", "d")))
    assert engine.step(FIVE).advertise == ("b", "c", "d")
    rolling = wanted("moving:a", "moving:x", "b", "c", "d")
    for _ in range(20):
        assert "a" in engine.step(rolling).advertise
    assert not any(line.endswith("unload a") for line in engine.history)


def test_one_that_is_wanted_while_it_cannot_be_unloaded_stays() -> None:
    engine = Engine(ROOMY, loaded=set(names("a", "b", "c", "d")))
    assert engine.step(FIVE).advertise == ("b", "c", "d")
    engine.loaded.discard(EngineName("a"))  # as seen while the engine is asked to unload it
    assert engine.ask(FIVE, "a") == "accepted"
    engine.loaded.add(EngineName("a"))  # it did not
    assert "a" in engine.step(FIVE).advertise


def test_of_the_never_used_the_longest_loaded_leaves_as_in_the_engine_and_the_unnamed_before_the_named() -> None:
    demand = wanted("a", "b", "c", "d", "unnamed:x", "unnamed:y")
    for first, second, leaves in (("b", "a", "b"), ("a", "x", "x"), ("y", "x", "y")):
        engine = Engine(ROOMY, loaded=set(names(first)), busy=set(names("c", "d")))
        engine.step(demand)
        engine.loaded = set(names(first, second, "c", "d"))
        hidden = engine.loaded - set(engine.step(demand).advertise)
        assert hidden == names(leaves)


def test_nothing_is_unloaded_while_nobody_hears_that_it_is_withdrawn() -> None:
    engine = Engine(ROOMY, loaded=set(names("a", "b", "c", "d")), heard=False)
    for _ in range(60):
        engine.step(FIVE)
    assert engine.loaded == names("a", "b", "c", "d")
    engine.heard = True
    for _ in range(3):
        engine.step(FIVE)
    assert engine.loaded == names("b", "c", "d")


def test_a_rollouts_new_version_pushes_the_idle_out() -> None:
    rolling = wanted("moving:v1", "moving:v2", "a", "b", "c")
    engine = Engine(ROOMY, loaded=set(names("v1", "a", "b", "c")))
    plan = engine.step(rolling)
    assert plan.left_out == {"v2": "waits for an adapter that is being drained"}
    for _ in range(20):
        plan = engine.step(rolling)
    assert {"v1", "v2"} < engine.loaded
    assert (len(engine.loaded), plan.left_out) == (3, {})


def test_every_channels_version_stays_where_they_leave_a_place_free() -> None:
    demand = wanted("a", "b", "c", "unnamed:x", "unnamed:y")
    engine = Engine(ROOMY)
    for name in ("x", "y", "x", "y"):
        engine.ask(demand, name)
        for _ in range(10):
            engine.step(demand)
        assert {"a", "b", "c"} <= engine.loaded
        assert engine.loaded <= names("a", "b", "c", "x", "y")
    assert "7 unload x" not in engine.history[:3]
    assert any("load y" in line for line in engine.history)


def test_a_want_is_forgotten_when_its_time_is_over() -> None:
    engine = Engine(replace(ROOMY, hold_s=0.0), loaded=set(names("a", "b", "c", "d")), busy=set(names("a", "b", "c")))
    engine.ask(FIVE, "e", wait_s=1.0)
    engine.step(FIVE, 0.5)
    assert "e" in engine.state.cold_loads
    engine.step(FIVE, 1.0)
    assert engine.state.cold_loads == {}


@pytest.mark.parametrize(("refused", "answer"), [(True, "refused"), (False, "failed")])
def test_what_failed_lately_is_answered_without_another_try(refused: bool, answer: str) -> None:
    engine = Engine(ROOMY)
    engine.state = adapters.record_failed_load(engine.state, EngineName("e"), "corrupt", 0.0, ROOMY, refused=refused)
    assert engine.ask(FIVE, "e") == answer
    engine.now_s = 1.0
    assert engine.ask(FIVE, "e") == "accepted"


def test_what_no_snapshot_names_is_unknown() -> None:
    engine = Engine(ROOMY)
    assert engine.ask(FIVE, "z") == "unknown"
    engine.loaded = set(names("z"))
    assert engine.ask(FIVE, "z") == "loaded", "still in its grace"


def test_wants_are_bounded() -> None:
    many = wanted(*(f"m{number}" for number in range(100)))
    engine = Engine(replace(ROOMY, max_cold_loads=10))
    answers = [engine.ask(many, f"m{number}") for number in range(20)]
    assert answers == ["accepted"] * 10 + ["full"] * 10
    assert engine.ask(many, "m3") == "accepted", "one who asks again takes no other place"


def test_a_plan_for_ten_thousand_adapters_looks_at_few() -> None:
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
            engine.ask(want, name)
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
def test_every_history_ends_with_exactly_what_is_wanted_where_all_fit(past: list[list[str]], last: list[str]) -> None:
    engine = Engine()
    for want in past:
        engine.step(wanted(*want))
    for _ in range(80):
        engine.step(wanted(*last))
    assert engine.loaded == {EngineName(name) for name in last}


@given(st.lists(_NAMES, min_size=1, max_size=30))
def test_every_cold_load_is_served_within_a_withdrawal_where_nothing_is_busy(asked: list[str]) -> None:
    """No starvation: a want is in the engine at most `hold_s`, `withdraw_s` and three passes after it was asked."""
    engine = Engine(ROOMY)
    for name in asked:
        deadline_s = engine.now_s + ROOMY.hold_s + ROOMY.withdraw_s + 3
        while name not in engine.loaded:
            engine.ask(FIVE, name)  # a gateway asks again after a refusal
            engine.step(FIVE)
            assert engine.now_s <= deadline_s
