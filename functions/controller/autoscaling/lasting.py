"""How long each warm replica of a pool that sleeps is as it is, and for whom nobody waits any longer: pure.

    loaded, not asleep   FALLS_ASLEEP_S for that from when it was first seen so. Ended before, it would be loaded again
    not yet loaded       for the first SURE_AFTER_S it is as if nothing were heard of it: an agent that is started again
                         beats before it has asked whether its engine sleeps. After LOADS_S it is stuck
    not heard of         not ended for that, as an agent is back within seconds. After UNHEARD_S it is stuck

One that is stuck gives way to those that lack a seat, and holds up nobody's loading. While the registry is away,
nothing of this is asked, and nobody is stuck.

Worked example (test_worked_example_of_a_silent_one): silent from 0 s on. At 119 s it is spared, at 120 s it gives way.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

State = Literal["loaded", "loading", "unheard"]
Since = Mapping[tuple[str, int], tuple[State, float]]  # by pool and number

FALLS_ASLEEP_S = 60.0  # three until it begins, and what it takes to copy 64 GiB of weights to host memory
SURE_AFTER_S = 3.0
LOADS_S = 600.0  # the agents' own start limit
UNHEARD_S = 120.0  # many starts of an agent on a busy machine


@dataclass(frozen=True, slots=True)
class Lasting:
    """Of one pool, by number."""

    settling: frozenset[int] = frozenset()  # loaded, and about to sleep
    unsure: frozenset[int] = frozenset()  # that may be asleep, although they do not say so
    stuck: frozenset[int] = frozenset()


def since(before: Since, states: Mapping[str, Mapping[int, State]], now_s: float) -> Since:
    """From when on each is as it is; `states` is of pools whose warm ones sleep, without those that do."""
    newest: dict[tuple[str, int], tuple[State, float]] = {}
    for pool, numbers in states.items():
        for number, state in numbers.items():
            former = before.get((pool, number))
            newest[pool, number] = former if former is not None and former[0] == state else (state, now_s)
    return newest


def lasting(since_s: Since, pool: str, now_s: float) -> Lasting:
    mine = {number: (state, now_s - at_s) for (name, number), (state, at_s) in since_s.items() if name == pool}
    return Lasting(
        settling=frozenset(n for n, (state, s) in mine.items() if state == "loaded" and s < FALLS_ASLEEP_S),
        unsure=frozenset(n for n, (state, s) in mine.items() if state == "loading" and s < SURE_AFTER_S),
        stuck=frozenset(n for n, (state, s) in mine.items() if s >= _LIMIT_S[state] and state != "loaded"),
    )


_LIMIT_S = {"loaded": FALLS_ASLEEP_S, "loading": LOADS_S, "unheard": UNHEARD_S}
