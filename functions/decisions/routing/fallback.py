"""Fallback pools: which may answer in the place of another, and which requests shift there as it fills.

The steps are the RoutingPolicy's (`fallback`), in the order in which they are written; a request takes at most
`MAX_HOPS` of them and comes to no pool twice, so that policies that are each fine cannot lead it in a circle.

As a pool fills, what loses least goes first. Pressure is the predicted wait in its replica's queue over the time to
first token that its band promises; a request is indifferent where next to nothing of its prompt is cached in the pool:

    shifted share of the indifferent = clamp((pressure - 0.5) / 0.5, 0, 1)

Worked example (test_worked_example_of_the_prologue): 375 ms of queue against an SLO of 500 ms is a pressure of 0.75, so
half of the indifferent requests are shifted, and none whose conversation is cached. From a pressure of 1 on a request
would break its SLO where it is: all of them may go, to where less is predicted.

The overload ladder (`ladder`) may ask for a share of its own: of all, whatever is cached, since those are what the pool
cannot answer in time and would be refused. Those go wherever there is room, whether or not it is faster there.

Neighbours: `functions.gateway.routing.fallback` rewrites the request; `functions.api.consistency.fallbacks` refuses
circles where the YAML is read.
"""

from collections.abc import Callable, Collection, Iterator

from functions.api.ids import PoolName
from functions.api.snapshot import FallbackEntry, FallbackWhen
from functions.decisions.routing.crowding import CROWD
from functions.decisions.routing.request import Prediction

MAX_HOPS = 3
SHIFT_FROM_PRESSURE_RATIO = 0.5
INDIFFERENT_BELOW_RATIO = 0.05  # of its prompt cached
_ESTIMATE_MARGIN_RATIO = 1.25  # a prompt that was not counted may be so much longer than it looks


def targets(
    steps: Collection[FallbackEntry], pool: PoolName, when: FallbackWhen, tier: str, been: Collection[PoolName]
) -> Iterator[PoolName]:
    """The pools to which a tier's request may go on from `pool`, the preferred one first; `been` were tried already."""
    if len(been) > MAX_HOPS:
        return
    for step in steps:
        if step.source_pool != pool or step.when != when or step.target_pool in been:
            continue
        if not step.tiers or tier in step.tiers:
            yield step.target_pool


def shift_targets(
    steps: Collection[FallbackEntry], pool: PoolName, has_ready: Callable[[PoolName], bool]
) -> Iterator[PoolName]:
    """The pools that would get what is shifted from `pool`, of one tier or another: the first that serves, of each."""
    for step in steps:
        if step.source_pool == pool and step.when == "saturated" and has_ready(step.target_pool):
            yield step.target_pool
            if not step.tiers:
                return


def waiting_ms(here: Prediction) -> float:
    """What of the predicted queue is waiting: those that run slow a newcomer down, but it does not wait for them."""
    return here.queue_ms - here.outstanding / CROWD * here.replica.service_ms


def pressure_ratio(queue_ms: float, slo_ms: float | None) -> float:
    """How near the pool is to breaking its promise; 0 where none was made."""
    return queue_ms / slo_ms if slo_ms else 0.0


def shifts(pressure: float, cached_ratio: float, draw: float, ladder_ratio: float = 0.0) -> bool:
    """Whether one request goes elsewhere though it might still be answered here. `draw` is uniform in [0, 1)."""
    if pressure >= 1.0 or draw < ladder_ratio:
        return True
    if cached_ratio >= INDIFFERENT_BELOW_RATIO:
        return False
    return draw < (pressure - SHIFT_FROM_PRESSURE_RATIO) / (1.0 - SHIFT_FROM_PRESSURE_RATIO)


def fits(prompt_tokens: int, *, exact: bool, output_tokens: int | None, window_tokens: int) -> bool:
    """Whether prompt and output have room in another pool's context window; None: as much output as there is room."""
    prompt = prompt_tokens if exact else int(prompt_tokens * _ESTIMATE_MARGIN_RATIO)
    return prompt + (output_tokens or 1) <= window_tokens
