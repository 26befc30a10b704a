"""Engine slots by heartbeats and processes; no more engines on a machine are awake than slots exist."""

from dataclasses import dataclass, field, replace

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from functions.controller.autoscaling.allocation import Allocation, next_allocation
from functions.controller.autoscaling.slots_in_use import (
    Lasting,
    SlotsInUse,
    count_ending_engines,
    replicas_by_number,
    shortage_text,
    without_lost,
)
from functions.decisions.autoscaling.accelerator_slots import HeldSlots, SlotAllotment, SlotDemand, allot_slots
from functions.fleet.pool_board import ReplicaReport
from tests.controller.scaling.builders import POOL, replica, report

ONE_AND_ONE = Allocation(2, frozenset({1}))
ONE_AND_ONE_OF_THREE = Allocation(3, frozenset({1}))


def seating(*replicas: ReplicaReport, allocation: Allocation = ONE_AND_ONE, sleeps: bool = True) -> SlotsInUse:
    return SlotsInUse(allocation, sleeps, replicas_by_number(report(*replicas), POOL))


def asleep(number: int) -> ReplicaReport:
    return replica(number, "warm", asleep=True)


def test_sleeping_replica_has_no_slot() -> None:
    assert seating(replica(0), asleep(1)).held_slots() == HeldSlots(serving=1, asleep=1, sleeps=True)


def test_awake_warm_replica_has_a_slot() -> None:
    assert seating(replica(0), replica(1, "warm")).held_slots() == HeldSlots(serving=1, loaded=1, sleeps=True)


def test_sleep_report_of_a_pool_without_sleep_is_ignored() -> None:
    assert seating(asleep(1), sleeps=False).held_slots() == HeldSlots(serving=1, loaded=1)


@pytest.mark.parametrize("phase", ["starting", "hung"])
def test_unhealthy_sleeping_replica_has_no_slot(phase: str) -> None:
    heartbeat = replica(1, phase, asleep=True)  # type: ignore[arg-type]
    assert seating(heartbeat).held_slots() == HeldSlots(serving=1, asleep=1, sleeps=True)


@pytest.mark.parametrize("phase", ["starting", "ready", "draining", "hung", "dead"])
def test_warm_replica_in_any_other_phase_has_a_slot(phase: str) -> None:
    heartbeat = replica(1, phase, asleep=phase == "dead")  # type: ignore[arg-type]
    assert seating(heartbeat).held_slots() == HeldSlots(serving=1, loading=1, sleeps=True)


def test_promoted_sleeper_has_its_slot_before_it_wakes() -> None:
    assert seating(replica(0), asleep(1), allocation=Allocation(2)).held_slots() == HeldSlots(serving=2, sleeps=True)


def test_silent_replica_has_a_slot_and_is_spared() -> None:
    silent = replica(1, "warm", asleep=True, age_s=60.0)
    assert (
        seating(silent).held_slots() == seating().held_slots() == HeldSlots(serving=1, unheard=1, spared=1, sleeps=True)
    )
    assert seating(silent, sleeps=False).held_slots() == HeldSlots(serving=1, loading=1)


def test_loading_replica_is_promoted_before_a_silent_one() -> None:
    pool = seating(replica(0), replica(2, "starting"), allocation=Allocation(3, frozenset({1, 2})))
    may = allot_slots({POOL: SlotDemand(2, 1)}, {POOL: pool.held_slots()}, 0, 3)[POOL]
    assert (
        next_allocation(pool.allocation, may.serving, may.warm, pool.awake, pool.sleepers(may)) == ONE_AND_ONE_OF_THREE
    )


def test_lost_trailing_sleepers_are_not_restarted_after_a_reboot() -> None:
    kept = Allocation(4, frozenset({1, 2, 3}))
    assert without_lost(kept, POOL, frozenset()) == Allocation(1)
    assert without_lost(kept, POOL, frozenset({f"{POOL}-2"})) == Allocation(3, frozenset({1, 2}))
    assert without_lost(Allocation(2, frozenset({0})), POOL, frozenset()) == Allocation(2, frozenset({0})), "no gaps"


def test_replica_without_a_sleep_field_counts_as_awake() -> None:
    said = msgspec.json.decode(msgspec.json.encode(asleep(1)))
    del said["asleep"]
    older = msgspec.convert(said, ReplicaReport)
    assert seating(replica(0), older).held_slots() == HeldSlots(serving=1, loaded=1, sleeps=True)


def test_missing_report_lists_no_replicas() -> None:
    assert replicas_by_number(None, POOL) == {}


def test_spared_and_stuck_replicas_depend_on_duration() -> None:
    one = frozenset({1})
    assert replace(seating(replica(1, "warm")), lasting=Lasting(settling=one)).held_slots().spared == 1
    begun = replace(seating(replica(1, "starting")), lasting=Lasting(unsure=one))
    assert begun.held_slots() == HeldSlots(serving=1, unheard=1, spared=1, sleeps=True)
    assert replace(begun, sleeps=False).held_slots() == HeldSlots(serving=1, loading=1)
    never = replace(seating(), lasting=Lasting(stuck=one))
    assert never.held_slots() == HeldSlots(serving=1, unheard=1, stuck=1, sleeps=True)
    assert [seating(*heard).states for heard in ((), (replica(1, "dead"),), (replica(1, "warm"),), (asleep(1),))] == [
        {1: "unheard"},
        {1: "loading"},
        {1: "loaded"},
        {},
    ]


def test_engine_outside_the_allocation_keeps_its_slot_until_it_ends() -> None:
    running = [f"{POOL}-0", f"{POOL}-1", f"{POOL}-2", "gone-0"]
    assert count_ending_engines(running, {POOL: seating()}) == 2


def test_slot_shortage_has_a_reason() -> None:
    pool = seating(replica(0), asleep(1))
    assert shortage_text(SlotDemand(1, 1), SlotAllotment(1, 1), pool, 3) == ""
    waits = shortage_text(SlotDemand(2, 1), SlotAllotment(1, 1), pool, 3)
    assert waits.startswith("a warm replica stays asleep until one of this machine's 3 slots") and "SHOAL_MAX" in waits
    assert shortage_text(SlotDemand(1, 2), SlotAllotment(1, 1), pool, 3).startswith(
        "warm replicas are loaded one at a time; the next"
    )
    in_the_middle = seating(replica(0), asleep(1), replica(2), allocation=ONE_AND_ONE_OF_THREE)
    assert shortage_text(SlotDemand(2, 0), SlotAllotment(2, 0), in_the_middle, 2).startswith(
        "one warm replica too many: it sleeps, and"
    )
    assert shortage_text(SlotDemand(1, 0), SlotAllotment(1, 0), pool, 2) == "", "the last one ends at once"
    assert shortage_text(SlotDemand(2, 1), SlotAllotment(1, 0), seating(sleeps=False), 3).startswith(
        "this machine runs 3 engines"
    )


# a machine


@dataclass
class Machine:
    """Two pools with one serving replica each; engines by pool and number are "loading", "awake" or "asleep"."""

    slots: int
    sleeps: dict[str, bool]
    allocations: dict[str, Allocation] = field(init=False)
    engines: dict[str, dict[int, str]] = field(init=False)
    leaving: int = 0

    def __post_init__(self) -> None:
        self.allocations = {pool: Allocation(1) for pool in self.sleeps}
        self.engines = {pool: {0: "awake"} for pool in self.sleeps}

    def awake(self) -> int:
        states = [state for engines in self.engines.values() for state in engines.values()]
        return self.leaving + len(states) - states.count("asleep")

    def pools(self) -> dict[str, SlotsInUse]:
        return {
            pool: SlotsInUse(allocation, self.sleeps[pool], self._heartbeats(pool))
            for pool, allocation in self.allocations.items()
        }

    def _heartbeats(self, pool: str) -> dict[int, ReplicaReport]:
        standby = self.allocations[pool].standby
        return {
            number: replica(number, "starting")
            if state == "loading"
            else replica(number, "warm" if number in standby else "ready", asleep=state == "asleep")
            for number, state in self.engines[pool].items()
        }

    def decide(self, demands: dict[str, SlotDemand]) -> dict[str, SlotAllotment]:
        """Run one pass; starts, wake-ups and stops take effect on slots at once."""
        pools = self.pools()
        held = {name: pool.held_slots() for name, pool in pools.items()}
        allowed = allot_slots(demands, held, self.leaving, self.slots)
        for name, pool in pools.items():
            may = allowed[name]
            then = next_allocation(pool.allocation, may.serving, may.warm, pool.awake | pool.asleep, pool.sleepers(may))
            self._follow(name, then)
        return allowed

    def _follow(self, name: str, then: Allocation) -> None:
        engines = self.engines[name]
        for number in range(then.count, self.allocations[name].count):
            self.leaving += engines.pop(number) != "asleep"
        for number in range(self.allocations[name].count, then.count):
            engines[number] = "loading"
        for number in engines:
            if number not in then.standby and engines[number] == "asleep":
                engines[number] = "awake"
        self.allocations[name] = then

    def go_on(self) -> None:
        """Finish every pending load, sleep and stop."""
        self.leaving = 0
        for name, engines in self.engines.items():
            for number, state in engines.items():
                if state == "loading":
                    engines[number] = "awake"
                elif number in self.allocations[name].standby and self.sleeps[name]:
                    engines[number] = "asleep"

    def settle(self, demands: dict[str, SlotDemand]) -> None:
        for _ in range(20):
            self.decide(demands)
            self.go_on()


demands = st.fixed_dictionaries({pool: st.builds(SlotDemand, st.integers(1, 4), st.integers(0, 2)) for pool in "ab"})
passes = st.lists(st.tuples(demands, st.booleans()), max_size=12)


@settings(max_examples=60)
@given(st.integers(2, 5), st.booleans(), passes)
def test_awake_engines_never_exceed_the_slots(
    slots: int, both: bool, asked: list[tuple[dict[str, SlotDemand], bool]]
) -> None:
    machine = Machine(slots, {"a": True, "b": both})
    for wanted, time_passes in asked:
        serving = {name: allocation.serving for name, allocation in machine.allocations.items()}
        machine.decide(wanted)
        assert machine.awake() <= slots
        for name, allocation in machine.allocations.items():
            assert allocation.serving >= min(serving[name], wanted[name].serving), (
                "nobody who serves sleeps for another"
            )
        if time_passes:
            machine.go_on()


@settings(max_examples=40)
@given(st.integers(2, 5), demands, demands)
def test_lasting_demand_is_met_as_far_as_slots_allow(
    slots: int, before: dict[str, SlotDemand], wanted: dict[str, SlotDemand]
) -> None:
    machine = Machine(slots, {"a": True, "b": True})
    machine.settle(before)
    machine.settle(wanted)
    serving = sum(allocation.serving for allocation in machine.allocations.values())
    assert serving == min(slots, sum(demand.serving for demand in wanted.values())), "no promotion is lost"
    if serving < slots:
        assert {name: len(allocation.standby) for name, allocation in machine.allocations.items()} == {
            name: demand.warm for name, demand in wanted.items()
        }, "the spare slots are shared by all that sleep"


def test_worked_example_of_a_spare_slot_on_a_machine() -> None:
    machine, calm = Machine(3, {"a": True, "b": True}), {"a": SlotDemand(1, 1), "b": SlotDemand(1, 1)}
    machine.settle(calm)
    assert machine.engines == {"a": {0: "awake", 1: "asleep"}, "b": {0: "awake", 1: "asleep"}}
    machine.settle({"a": SlotDemand(2, 1), "b": SlotDemand(2, 1)})
    assert machine.allocations == {"a": Allocation(2), "b": ONE_AND_ONE}
    machine.settle({"a": SlotDemand(1, 1), "b": SlotDemand(2, 1)})
    assert machine.allocations == {"a": ONE_AND_ONE, "b": Allocation(2)}


def test_sleeper_that_dies_is_dropped_if_its_slot_is_taken() -> None:
    machine = Machine(3, {"a": True, "b": True})
    machine.settle({"a": SlotDemand(1, 1), "b": SlotDemand(1, 1)})
    machine.settle({"a": SlotDemand(2, 1), "b": SlotDemand(1, 1)})
    machine.engines["b"][1] = "loading"  # a restarted engine, which would be the fourth
    machine.decide({"a": SlotDemand(2, 1), "b": SlotDemand(1, 1)})
    assert machine.allocations == {"a": Allocation(2), "b": Allocation(1)}
    machine.settle({"a": SlotDemand(1, 1), "b": SlotDemand(1, 1)})
    assert machine.allocations == {"a": ONE_AND_ONE, "b": ONE_AND_ONE}, "and comes back when there is one"
