"""Fallback pools: pools that may answer instead of another one, and the requests that shift there as it fills.

The steps are the RoutingPolicy's (`fallback`), in the order in which they are written. A request takes at most
`MAX_HOPS` of them and visits no pool twice, so that policies cannot lead it in a circle.

As a pool fills, requests that lose least are shifted first. Pressure is the predicted wait in its replica's queue over
the band's TTFT SLO. A request is indifferent if next to nothing of its prompt is cached in the pool:

    shifted share of the indifferent = clamp((pressure - 0.5) / 0.5, 0, 1)

Worked example (test_worked_example_of_the_prologue): 375 ms of queue against an SLO of 500 ms is a pressure of 0.75, so
half of the indifferent requests are shifted, and none whose conversation is cached. From a pressure of 1 on, a request
that stays would break its SLO. So all of them may go to a pool where less is predicted.

The overload ladder (`ladder`) may set an additional share, which applies to all requests whatever is cached: the pool
cannot answer these in time and would reject them. They go to any pool with room, even if it is not faster.

Neighbours: `functions.gateway.routing.fallback` rewrites the request; `functions.api.consistency.fallbacks` rejects
circles when the YAML is read.
"""

from collections.abc import Callable, Collection, Iterator

from functions.api.ids import PoolName
from functions.api.snapshot import FallbackEntry, FallbackWhen
from functions.decisions.routing.crowding import CROWD
from functions.decisions.routing.request import Prediction

MAX_HOPS = 3
SHIFT_FROM_PRESSURE_RATIO = 0.5
INDIFFERENT_BELOW_RATIO = 0.05  # cached share of the prompt
_ESTIMATE_MARGIN_RATIO = 1.25  # an estimated prompt may be longer by this factor


def targets(
    steps: Collection[FallbackEntry], pool: PoolName, when: FallbackWhen, tier: str, been: Collection[PoolName]
) -> Iterator[PoolName]:
    """Yield the pools that a tier's request may go to from `pool`, preferred first, without those in `been`; none after
    MAX_HOPS."""
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
    """Yield the ready pools that receive requests shifted from `pool`, up to the first that accepts every tier."""
    for step in steps:
        if step.source_pool == pool and step.when == "saturated" and has_ready(step.target_pool):
            yield step.target_pool
            if not step.tiers:
                return


def waiting_ms(here: Prediction) -> float:
    """Return the waiting part of the predicted queue in milliseconds, without the slowdown by running requests."""
    return here.queue_ms - here.outstanding / CROWD * here.replica.service_ms


def pressure_ratio(queue_ms: float, slo_ms: float | None) -> float:
    """Return the predicted wait as a share of the SLO, or 0 without an SLO."""
    return queue_ms / slo_ms if slo_ms else 0.0


def shifts(pressure: float, cached_ratio: float, draw: float, ladder_ratio: float = 0.0) -> bool:
    """Return True if a request is shifted although this pool might still answer it: always from a pressure of 1 on,
    below that by lot, and never by pressure if much of its prompt is cached. `draw` is uniform in [0, 1)."""
    if pressure >= 1.0 or draw < ladder_ratio:
        return True
    if cached_ratio >= INDIFFERENT_BELOW_RATIO:
        return False
    return draw < (pressure - SHIFT_FROM_PRESSURE_RATIO) / (1.0 - SHIFT_FROM_PRESSURE_RATIO)


def fits(prompt_tokens: int, *, exact: bool, output_tokens: int | None, window_tokens: int) -> bool:
    """Return True if prompt and output fit another pool's context window. An estimated prompt gets a margin; output
    None needs room for one token."""
    prompt = prompt_tokens if exact else int(prompt_tokens * _ESTIMATE_MARGIN_RATIO)
    return prompt + (output_tokens or 1) <= window_tokens
