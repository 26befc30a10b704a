"""Limits of a machine: the YAML's number first, then serving replicas, then warm ones."""

from hypothesis import given
from hypothesis import strategies as st

from functions.controller.autoscaling.allocation import SlotDemand, grant_slots

demands = st.dictionaries(
    st.sampled_from("abcd"),
    st.builds(SlotDemand, st.integers(0, 9), st.integers(0, 3), st.integers(0, 3)),
    max_size=4,
)

costs = st.fixed_dictionaries({name: st.integers(1, 8) for name in "abcd"})


def test_worked_example_of_a_full_machine() -> None:
    allowed = grant_slots({"a": SlotDemand(4, 1), "b": SlotDemand(1, 1)}, {"a": 2, "b": 1}, 4)
    assert allowed == {"a": SlotDemand(3, 0), "b": SlotDemand(1, 0)}


def test_number_in_the_yaml_is_granted_beyond_the_bound() -> None:
    assert grant_slots({"a": SlotDemand(3, 1, least=3)}, {}, 1) == {"a": SlotDemand(3, 0, least=3)}


def test_all_replicas_are_granted_if_there_is_room() -> None:
    asked = {"a": SlotDemand(4, 1), "b": SlotDemand(1, 1)}
    assert grant_slots(asked, {}, 7) == asked


def test_replica_counts_all_its_accelerators() -> None:
    costs = {"large": 8, "small": 1}
    asked = {"large": SlotDemand(3), "small": SlotDemand(6, 2)}
    assert grant_slots(asked, {"large": 1, "small": 2}, 20, costs) == {"large": SlotDemand(2), "small": SlotDemand(4)}
    assert grant_slots(asked, {"large": 1, "small": 2}, 24, costs) == {
        "large": SlotDemand(2),
        "small": SlotDemand(6, 2),
    }


def test_room_too_small_for_one_pool_goes_to_another() -> None:
    asked = {"large": SlotDemand(2), "small": SlotDemand(9)}
    assert grant_slots(asked, {"large": 1}, 15, {"large": 8}) == {"large": SlotDemand(1), "small": SlotDemand(7)}


@given(demands, st.dictionaries(st.sampled_from("abcd"), st.integers(0, 9)), st.integers(0, 20), costs)
def test_growth_stays_within_the_bound(
    asked: dict[str, SlotDemand], present: dict[str, int], most: int, costs: dict[str, int]
) -> None:
    allowed = grant_slots(asked, present, most, costs)
    total = sum((demand.serving + demand.warm) * costs[name] for name, demand in allowed.items())
    there = sum(min(asked[name].serving, max(asked[name].least, present.get(name, 0))) * costs[name] for name in asked)
    assert total <= max(most, there)
    assert all(
        allowed[name].serving <= asked[name].serving and allowed[name].warm <= asked[name].warm for name in asked
    )
