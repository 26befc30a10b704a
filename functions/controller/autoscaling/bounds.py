"""Bounds on pools of a machine that holds only so many engines. Pure.

    1  what the pools' YAML asks for is theirs, whatever the bound says
    2  replicas that serve come before warm ones, those that are there before new ones
    3  what is left is given out one at a time, to the pool that has got the smallest part of what it wants

Worked example (test_worked_example_of_a_full_machine): 4 engines fit. A has 2 and wants 4 and 1 warm, B has 1 and wants
1 and 1 warm: A gets 3 and B 1, and nobody has a warm one.
"""

from collections.abc import Mapping

from functions.decisions.autoscaling.accelerator_slots import SlotDemand

__all__ = ["SlotDemand", "granted"]


def granted(wishes: Mapping[str, SlotDemand], present: Mapping[str, int], most: int) -> dict[str, SlotDemand]:
    """What each may have; `present` is how many serve now."""
    given = {name: min(wish.serving, max(wish.least, present.get(name, 0))) for name, wish in wishes.items()}
    left = most - sum(given.values())
    left = _give(given, {name: wish.serving for name, wish in wishes.items()}, left)
    warm = dict.fromkeys(wishes, 0)
    _give(warm, {name: wish.warm for name, wish in wishes.items()}, left)
    return {name: SlotDemand(given[name], warm[name], wish.least) for name, wish in wishes.items()}


def _give(given: dict[str, int], wanted: Mapping[str, int], left: int) -> int:
    """One at a time until nobody wants more or nothing is left; what is left then."""
    while left > 0:
        lacking = [name for name in sorted(given) if given[name] < wanted[name]]
        if not lacking:
            break
        given[min(lacking, key=lambda name: (given[name] / wanted[name], name))] += 1
        left -= 1
    return left
