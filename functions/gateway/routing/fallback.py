"""Rewriting of a request for another pool: the target's base model, under the target's policy, in the body too.

Not every target will do. The tenant must be allowed to call the target's base model (a pool's base model bears the
pool's name), its engines must do the same task, and prompt and output must fit its context window; otherwise the next
step of the policy is looked at. The client's answer keeps the name that it asked for; `x-shoal-model` tells which
model it was, and `x-shoal-degraded` why.

Neighbours: `functions.decisions.routing.fallback` says which pools in which order; `exchange` goes there.
"""

import dataclasses
import zlib
from collections.abc import Iterator

import msgspec
import orjson

from functions.api.ids import PoolName
from functions.api.snapshot import FallbackWhen
from functions.decisions.catalogue import Catalogue
from functions.decisions.routing import fallback as decisions
from functions.decisions.routing.choice import Prediction
from functions.gateway.errors import ErrorAnswer
from functions.gateway.intake.features import for_other_model
from functions.gateway.intake.lengths import field_in_force
from functions.gateway.request.request import Admitted

_DRAWS = 2**32


class Degraded:
    """How a request came away from the pool that it asked for."""

    __slots__ = ("answer", "been", "reason", "requested", "why")

    def __init__(self, requested: Admitted, reason: FallbackWhen, answer: ErrorAnswer | None, why: str = "") -> None:
        self.requested = requested
        self.reason = reason
        self.why = why or reason  # the label of shoal_shed_total that it would have had, if there is one
        self.answer = answer  # what it would have got where it was; None: it might have been answered there
        self.been: tuple[PoolName, ...] = (requested.model.pool,)

    def header(self) -> tuple[bytes, bytes]:
        return b"x-shoal-degraded", b"from=%b;reason=%b" % (
            self.requested.model.served_as.encode(),
            self.reason.encode(),
        )


def elsewhere(
    catalogue: Catalogue, admitted: Admitted, when: FallbackWhen, degraded: Degraded | None
) -> Admitted | None:
    """The request for the first pool that may take it; None: there is none."""
    return next(all_elsewhere(catalogue, admitted, when, degraded), None)


def all_elsewhere(
    catalogue: Catalogue, admitted: Admitted, when: FallbackWhen, degraded: Degraded | None
) -> Iterator[Admitted]:
    """The request for each pool that may take it, the preferred one first."""
    steps = admitted.routing.fallback
    if not steps:
        return
    pool = admitted.model.pool
    been = degraded.been if degraded is not None else (pool,)
    tier = catalogue.tenants[admitted.caller.tenant].tier
    for target in decisions.targets(steps, pool, when, tier, been):
        moved = in_pool(catalogue, admitted, target)
        if moved is not None:
            yield moved


def in_pool(catalogue: Catalogue, admitted: Admitted, pool: PoolName) -> Admitted | None:
    """The request for another pool's base model; None where that will not do."""
    model = catalogue.resolve(admitted.caller.tenant, pool)
    entry, source = catalogue.pools.get(pool), catalogue.pools.get(admitted.model.pool)
    if model is None or model.is_adapter or entry is None or source is None or entry.task != source.task:
        return None
    parsed = orjson.loads(admitted.upstream_body)
    output, features = admitted.route.output, admitted.features
    asked = parsed.get(field_in_force(parsed, output.names)) if output is not None else None
    if not decisions.fits(
        features.prompt_tokens,
        exact=features.prompt_exact,
        output_tokens=asked,
        window_tokens=model.context_window_tokens,
    ):
        return None
    parsed["model"] = model.engine_name
    return msgspec.structs.replace(
        admitted,
        model=dataclasses.replace(model, requested=admitted.model.requested, split=None),
        routing=catalogue.routing_for(pool),
        features=for_other_model(features, parsed, output, model.engine_name),
        upstream_body=orjson.dumps(parsed),
        split=None,
    )


def draw_of(admitted: Admitted) -> float:
    """Uniform in [0, 1), the same for the same request."""
    return zlib.crc32(admitted.request_id.encode()) / _DRAWS


def is_shifted(catalogue: Catalogue, admitted: Admitted, here: Prediction, ladder_ratio: float) -> bool:
    """Whether the pool is so full that this request had better go elsewhere, though it could be answered here.

    `ladder_ratio`: the share that the overload ladder sends away.
    """
    bands = catalogue.admission_for(admitted.model.pool).bands
    slo_ms = next((band.ttft_slo_ms for band in bands if band.name == admitted.service_class), None)
    pressure = decisions.pressure_ratio(decisions.waiting_ms(here), slo_ms)
    if pressure <= decisions.SHIFT_FROM_PRESSURE_RATIO and not ladder_ratio:
        return False
    cached_ratio = here.cached_tokens / max(1, admitted.features.prompt_tokens)
    return decisions.shifts(pressure, cached_ratio, draw_of(admitted), ladder_ratio)
