"""Which engines may be awake on a node: serving ones before warm ones, and each free slot to one of the pools that want
it.
"""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from functions.decisions.autoscaling.accelerator_slots import (
    HeldSlots,
    SlotAllotment,
    SlotDemand,
    allot_slots,
    free_slots,
    sleepers_without_slot,
)

SLEEPER = HeldSlots(serving=1, asleep=1, sleeps=True)

pools = st.sampled_from("abc")
helds = st.builds(
    lambda serving, loaded, loading, unheard, asleep, sleeps: HeldSlots(
        serving=serving,
        loaded=loaded,
        loading=loading,
        unheard=unheard if sleeps else 0,
        asleep=asleep if sleeps else 0,
        sleeps=sleeps,
    ),
    *(st.integers(0, 3) for _ in range(5)),
    st.booleans(),
)
demands = st.builds(SlotDemand, st.integers(0, 5), st.integers(0, 3))
nodes = st.dictionaries(pools, st.tuples(demands, helds), min_size=1)


def allot(node: dict[str, tuple[SlotDemand, HeldSlots]], slots: int, ending: int = 0) -> dict[str, SlotAllotment]:
    return allot_slots({n: w for n, (w, _) in node.items()}, {n: h for n, (_, h) in node.items()}, ending, slots)


def test_worked_example_of_a_spare_slot() -> None:
    loading = {
        "a": (SlotDemand(1, 1), HeldSlots(serving=1, sleeps=True)),
        "b": (SlotDemand(1, 1), HeldSlots(serving=1, sleeps=True)),
    }
    assert allot(loading, 3) == {"a": SlotAllotment(1, 1), "b": SlotAllotment(1, 0)}
    loading["a"] = (SlotDemand(1, 1), replace(loading["a"][1], loading=1))
    assert allot(loading, 3) == {"a": SlotAllotment(1, 1), "b": SlotAllotment(1, 0)}, (
        "one is loading, on the spare slot"
    )
    loading["a"] = (SlotDemand(1, 1), SLEEPER)
    assert allot(loading, 3) == {"a": SlotAllotment(1, 1), "b": SlotAllotment(1, 1)}
    both = {"a": (SlotDemand(2, 1), SLEEPER), "b": (SlotDemand(2, 1), SLEEPER)}
    assert allot(both, 3) == {"a": SlotAllotment(2, 0, wake=1), "b": SlotAllotment(1, 1)}
    both["a"] = (SlotDemand(2, 1), HeldSlots(serving=2, sleeps=True))
    assert allot(both, 3)["b"] == SlotAllotment(1, 1), "a has the slot now"
    both["a"] = (SlotDemand(1, 1), HeldSlots(serving=1, asleep=1, sleeps=True))
    assert allot(both, 3)["b"] == SlotAllotment(2, 0, wake=1)


def test_one_engine_loads_at_a_time_however_many_slots_are_free() -> None:
    fresh = {name: (SlotDemand(1, 1), HeldSlots(serving=1, sleeps=True)) for name in "ab"}
    assert [each.warm for each in allot(fresh, 9).values()] == [1, 0]
    fresh["a"] = (SlotDemand(1, 1), HeldSlots(serving=1, loading=1, sleeps=True))
    assert [each.warm for each in allot(fresh, 9).values()] == [1, 0]
    stays = {name: (SlotDemand(1, 2), HeldSlots(serving=1)) for name in "ab"}
    assert [each.warm for each in allot(stays, 9).values()] == [2, 2], "a pool with its own slot makes no other wait"


def test_allotment_without_sleeping_engines() -> None:
    full = {"a": (SlotDemand(4, 1), HeldSlots(serving=2)), "b": (SlotDemand(1, 1), HeldSlots(serving=1))}
    assert allot(full, 4) == {"a": SlotAllotment(3, 0), "b": SlotAllotment(1, 0)}
    assert allot(full, 7) == {"a": SlotAllotment(4, 1), "b": SlotAllotment(1, 1)}


def test_configured_minimum_is_allotted_whatever_slots_there_are() -> None:
    assert allot({"a": (SlotDemand(3, 1, least=3), HeldSlots())}, 1) == {"a": SlotAllotment(3, 0)}
    assert allot({"a": (SlotDemand(2, 1, least=2), SLEEPER)}, 1) == {"a": SlotAllotment(2, 0, wake=1)}


def test_awake_warm_engine_is_promoted_without_a_slot() -> None:
    assert allot({"a": (SlotDemand(2, 1), HeldSlots(serving=1, loaded=1))}, 2) == {"a": SlotAllotment(2, 0)}
    assert allot({"a": (SlotDemand(2, 1), HeldSlots(serving=1, loading=1))}, 2) == {"a": SlotAllotment(2, 0)}
    mixed = HeldSlots(serving=1, loading=1, asleep=1, sleeps=True)
    assert allot({"a": (SlotDemand(2, 1), mixed)}, 2) == {"a": SlotAllotment(2, 1)}, (
        "the one that sleeps has no slot to wake on"
    )
    assert allot({"a": (SlotDemand(2, 1), mixed)}, 3) == {"a": SlotAllotment(2, 1, wake=1)}, (
        "it serves sooner than one that loads"
    )


def test_surplus_serving_engine_holds_its_slot_until_it_sleeps_or_ends() -> None:
    node = {"a": (SlotDemand(1, 1), HeldSlots(serving=2, sleeps=True)), "b": (SlotDemand(2, 1), SLEEPER)}
    assert allot(node, 3)["b"] == SlotAllotment(1, 1)
    assert allot({"b": node["b"]}, 2, ending=1)["b"] == SlotAllotment(1, 1)
    assert allot({"b": node["b"]}, 2)["b"] == SlotAllotment(2, 0, wake=1)


def test_surplus_serving_engine_becomes_warm_on_its_own_slot() -> None:
    node = {"a": (SlotDemand(1, 1), HeldSlots(serving=2, sleeps=True)), "b": (SlotDemand(1, 1), SLEEPER)}
    assert allot(node, 3) == {"a": SlotAllotment(1, 1), "b": SlotAllotment(1, 1)}
    full = {"a": (SlotDemand(1, 1), HeldSlots(serving=2)), "b": (SlotDemand(2, 1), SLEEPER)}
    assert allot(full, 3) == {"a": SlotAllotment(1, 0), "b": SlotAllotment(1, 1)}, (
        "it ends where it does not sleep and b is to serve"
    )


def test_awake_warm_engine_ends_for_one_that_must_serve() -> None:
    node = {"a": (SlotDemand(1, 1), HeldSlots(serving=1, loaded=1)), "b": (SlotDemand(2, 1), SLEEPER)}
    assert allot(node, 3) == {"a": SlotAllotment(1, 0), "b": SlotAllotment(1, 1)}


def test_engine_about_to_sleep_or_silent_is_not_ended() -> None:
    node = {
        "a": (SlotDemand(1, 1), HeldSlots(serving=1, loaded=1, spared=1, sleeps=True)),
        "b": (SlotDemand(2, 1), SLEEPER),
    }
    assert allot(node, 3) == {"a": SlotAllotment(1, 1), "b": SlotAllotment(1, 1)}


def test_silent_engines_cause_no_ends() -> None:
    unheard = HeldSlots(serving=1, unheard=1, spared=1, sleeps=True)
    node = {name: (SlotDemand(1, 1), unheard) for name in "ab"} | {"c": (SlotDemand(0, 1), HeldSlots(loaded=1))}
    assert allot(node, 3) == {"a": SlotAllotment(1, 1), "b": SlotAllotment(1, 1), "c": SlotAllotment(0, 1)}


def test_silent_engine_is_promoted_only_on_a_free_slot() -> None:
    """The replica may sleep: its agent would wake it on its return."""
    node = {
        "a": (SlotDemand(2, 1), HeldSlots(serving=2)),
        "b": (SlotDemand(2, 1), HeldSlots(serving=1, unheard=1, spared=1, sleeps=True)),
    }
    assert allot(node, 4)["b"] == SlotAllotment(1, 1), "the fourth slot is its own only where it is awake"
    assert allot(node, 5)["b"] == SlotAllotment(2, 0)


def test_stuck_load_does_not_block_other_pools() -> None:
    for loading, unheard in ((1, 0), (0, 1)):
        slow = HeldSlots(serving=1, loading=loading, unheard=unheard, spared=unheard, sleeps=True)
        node = {"a": (SlotDemand(1, 1), slow), "b": (SlotDemand(1, 1), HeldSlots(serving=1, sleeps=True))}
        assert allot(node, 8)["b"] == SlotAllotment(1, 0)
        node["a"] = (SlotDemand(1, 1), replace(slow, stuck=1, spared=0))
        assert allot(node, 8)["b"] == SlotAllotment(1, 1)
        assert allot({"a": node["a"], "b": (SlotDemand(2), HeldSlots(serving=1))}, 3)["a"] == SlotAllotment(1, 0), (
            "it gives way"
        )


def test_restarted_sleeper_yields_without_a_free_slot() -> None:
    node = {
        "a": (SlotDemand(2, 1), HeldSlots(serving=2)),
        "b": (SlotDemand(1, 1), HeldSlots(serving=1, loading=1, sleeps=True)),
    }
    assert allot(node, 3)["b"] == SlotAllotment(1, 0)
    assert allot(node, 4)["b"] == SlotAllotment(1, 1)


def test_sleeper_replaces_an_ending_engine_only_on_a_free_slot() -> None:
    node = {"a": (SlotDemand(1, 0), SLEEPER)}
    assert allot(node, 2) == {"a": SlotAllotment(1, 0, wake=1)}
    assert allot(node, 1) == {"a": SlotAllotment(1, 0)}


def test_sleeper_without_a_slot_cannot_be_borrowed() -> None:
    held = {"a": SLEEPER, "b": replace(SLEEPER, asleep=2), "c": HeldSlots(serving=1, loaded=1)}
    assert sleepers_without_slot(held, 0, 5) == {"a": 0, "b": 1, "c": 0}
    assert sleepers_without_slot(held, 0, 4) == sleepers_without_slot(held, 1, 5) == {"a": 1, "b": 2, "c": 0}


@settings(max_examples=60)
@given(nodes, st.integers(0, 12), st.integers(0, 3))
def test_never_more_awake_than_there_are_slots(
    node: dict[str, tuple[SlotDemand, HeldSlots]], slots: int, ending: int
) -> None:
    allowed = allot(node, slots, ending)
    before = sum(held.awake for _, held in node.values())
    after = sum(_awake_after(*node[name], allowed[name]) for name in node)
    assert after <= max(before, slots - ending)


def _awake_after(demand: SlotDemand, held: HeldSlots, allowed: SlotAllotment) -> int:
    """Count engines awake at once: ending and falling asleep still use a slot, starting and waking need one."""
    lacking = max(0, allowed.serving - held.serving)
    promoted = min(lacking, held.loaded + allowed.wake + held.loading)
    too_many = max(0, held.serving - allowed.serving)
    roused = min(lacking - promoted, held.unheard)  # it may have slept
    kept_warm = held.loaded + held.loading + held.unheard + held.asleep + too_many - promoted - roused
    started = lacking - promoted + max(0, allowed.warm - kept_warm)
    return held.awake + allowed.wake + started


@settings(max_examples=60)
@given(nodes, st.integers(0, 12), st.integers(0, 3))
def test_serving_engines_continue_and_free_slots_go_to_waiting_pools(
    node: dict[str, tuple[SlotDemand, HeldSlots]], slots: int, ending: int
) -> None:
    allowed = allot(node, slots, ending)
    for name, (demand, held) in node.items():
        assert min(demand.serving, held.serving) <= allowed[name].serving <= demand.serving
        assert allowed[name].warm <= demand.warm and allowed[name].wake <= held.asleep
    waits = [name for name, (demand, _) in node.items() if allowed[name].serving < demand.serving]
    if waits:
        free = free_slots({name: held for name, (_, held) in node.items()}, ending, slots)
        given_serving = sum(max(0, allowed[name].serving - held.serving) for name, (_, held) in node.items())
        assert given_serving >= free, "each free slot went to one that is to serve"
        assert all(allowed[name].serving - node[name][1].serving >= node[name][1].loaded for name in waits)


@settings(max_examples=20)
@given(st.integers(2, 5), st.integers(0, 3))
def test_exactly_one_of_several_pools_gets_the_last_slot(many: int, more: int) -> None:
    node = {f"p{number}": (SlotDemand(2, 1), replace(SLEEPER, asleep=1 + more)) for number in range(many)}
    allowed = allot(node, many + 1)
    assert sum(each.serving for each in allowed.values()) == many + 1
    assert sum(each.wake for each in allowed.values()) == 1
