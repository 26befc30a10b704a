"""Rewrite a request for another pool: a pool of the same model, or another model under the target's policy.

If a model has several pools, those that the tenant may use come first (`placement.takeovers`). Adapter and version
stay the same and the answer is no worse, so only `x-shoal-replica` shows the move. If the weights are quantized
differently the answer differs, and the move is reported as degraded.

The policy's fallbacks come next, to the target's base model. A target must meet three conditions, else the policy's
next step is tried. The tenant may call the base model, which has the pool's name. The target's engines do the same
task. Prompt and output fit its context window. The client's answer keeps the requested name. `x-shoal-model` reports
the model used, and `x-shoal-degraded` the reason.

`functions.decisions.routing.fallback` orders the pools; `exchange` moves the request.
"""

import dataclasses
import zlib
from collections.abc import Callable, Iterator

import msgspec
import orjson

from functions.api.ids import PoolName
from functions.api.snapshot import FallbackWhen
from functions.decisions.catalogue import Catalogue, ResolvedModel
from functions.decisions.routing import fallback as decisions
from functions.decisions.routing.choice import NoReplica, Prediction
from functions.decisions.routing.placement import Placed, model_of, takeovers
from functions.gateway.errors import ErrorAnswer
from functions.gateway.intake.features import for_other_model
from functions.gateway.intake.lengths import field_in_force
from functions.gateway.request.request import Admitted
from functions.gateway.routing.splits import SplitUse

_DRAWS = 2**32


class Degraded:
    """Record of how a request left the pool that it requested."""

    __slots__ = ("answer", "been", "is_same_model", "reason", "requested", "why")

    def __init__(self, requested: Admitted, reason: FallbackWhen, answer: ErrorAnswer | None, why: str = "") -> None:
        self.requested = requested
        self.reason = reason
        self.why = why or reason  # label of shoal_shed_total without the move, if there is one
        self.answer = answer  # error of the requested pool; None: that pool might have answered
        self.been: tuple[PoolName, ...] = (requested.model.pool,)
        self.is_same_model = True  # True if the same model answers, with weights of the same precision

    def record_move(self, catalogue: Catalogue, moved: Admitted) -> None:
        """Record a move to the next pool, and if that has the same model in the same quantization."""
        own, pool = self.requested.model, moved.model.pool
        self.been += (pool,)
        self.is_same_model = (
            moved.model.id == own.id and catalogue.pools[pool].quantization == catalogue.pools[own.pool].quantization
        )

    def header(self) -> tuple[bytes, bytes]:
        return b"x-shoal-degraded", b"from=%b;reason=%b" % (
            self.requested.model.served_as.encode(),
            self.reason.encode(),
        )


def elsewhere(
    catalogue: Catalogue, admitted: Admitted, when: FallbackWhen, degraded: Degraded | None
) -> Admitted | None:
    """Return the request for the first other pool that may serve it, or None: see `all_elsewhere`."""
    return next(all_elsewhere(catalogue, admitted, when, degraded), None)


def all_elsewhere(
    catalogue: Catalogue, admitted: Admitted, when: FallbackWhen, degraded: Degraded | None
) -> Iterator[Admitted]:
    """Yield the request for each other pool that may serve it and was not used: of its model, then fallbacks."""
    pool, steps = admitted.model.pool, admitted.routing.fallback
    been = degraded.been if degraded is not None else (pool,)
    for target in takeovers(admitted.model.other_pools, when, admitted.service_class, been):
        moved = in_same_model(catalogue, admitted, target)
        if moved is not None:
            yield moved
    tier = catalogue.tenants[admitted.caller.tenant].tier
    for source in {pool: None, model_of(catalogue.pools[pool]): None} if steps else ():
        for target in decisions.targets(steps, source, when, tier, been):
            moved = in_pool(catalogue, admitted, target)
            if moved is not None:
                yield moved


def in_same_model(catalogue: Catalogue, admitted: Admitted, pool: PoolName) -> Admitted | None:
    """Return the request for another pool of its model, or None if that pool cannot serve it."""
    model = catalogue.in_pool(admitted.model, pool)
    if model is admitted.model or not _may_go(catalogue, admitted, model):
        return None
    split = admitted.split
    if split is not None:
        split = msgspec.structs.replace(split, control=catalogue.in_pool(split.control, pool))
    return _rewritten(catalogue, admitted, model, split)


def placed_by_time(
    catalogue: Catalogue, admitted: Admitted, decide: Callable[[Admitted], Prediction | NoReplica]
) -> Admitted:
    """Return the request for the pool that the placement rules choose with predicted times to first token.

    Without rules on predicted time it is unchanged: the other rules were applied at admission.
    """
    rules = catalogue.routing_for(model_of(catalogue.pools[admitted.model.pool])).placement
    if all(rule.min_predicted_ttft_ms is None for rule in rules):
        return admitted

    def predict(pool: PoolName) -> float | None:
        moved = admitted if pool == admitted.model.pool else in_same_model(catalogue, admitted, pool)
        decision = decide(moved) if moved is not None else None
        return decision.total_ms if isinstance(decision, Prediction) else None

    tenant, tokens = admitted.caller.tenant, admitted.features.prompt_tokens
    request = Placed(tenant, catalogue.tenants[tenant].tier, admitted.service_class, tokens)
    model = catalogue.placed(admitted.model, request, predict)
    return in_same_model(catalogue, admitted, model.pool) or admitted


def in_pool(catalogue: Catalogue, admitted: Admitted, pool: PoolName) -> Admitted | None:
    """Return the request for this pool's base model, outside any rollout, or None if the pool cannot serve it."""
    model = catalogue.resolve_base(admitted.caller.tenant, pool)
    if model is None or model.is_adapter or not _may_go(catalogue, admitted, model):
        return None
    model = dataclasses.replace(model, requested=admitted.model.requested, split=None)
    return _rewritten(catalogue, admitted, model, None)


def _may_go(catalogue: Catalogue, admitted: Admitted, model: ResolvedModel) -> bool:
    """Return True if the model's pool does the same task and prompt and output fit its context window."""
    entry, source = catalogue.pools.get(model.pool), catalogue.pools.get(admitted.model.pool)
    if entry is None or source is None or entry.task != source.task:
        return False
    parsed, output, features = orjson.loads(admitted.upstream_body), admitted.route.output, admitted.features
    return decisions.fits(
        features.prompt_tokens,
        exact=features.prompt_exact,
        output_tokens=parsed.get(field_in_force(parsed, output.names)) if output is not None else None,
        window_tokens=model.context_window_tokens,
    )


def _rewritten(catalogue: Catalogue, admitted: Admitted, model: ResolvedModel, split: SplitUse | None) -> Admitted:
    parsed = orjson.loads(admitted.upstream_body)
    parsed["model"] = model.engine_name
    return msgspec.structs.replace(
        admitted,
        model=model,
        routing=catalogue.routing_for(model.pool),
        features=for_other_model(admitted.features, parsed, admitted.route.output, model.engine_name),
        upstream_body=orjson.dumps(parsed),
        split=split,
    )


def draw_of(admitted: Admitted) -> float:
    """Return a number in [0, 1) that is uniform over requests and stable for each request."""
    return zlib.crc32(admitted.request_id.encode()) / _DRAWS


def is_shifted(catalogue: Catalogue, admitted: Admitted, here: Prediction, ladder_ratio: float) -> bool:
    """Return True if the pool is so full that the request should move, although the pool could answer it.

    `ladder_ratio` is the share of requests that the overload ladder sends away.
    """
    bands = catalogue.admission_for(admitted.model.pool).bands
    slo_ms = next((band.ttft_slo_ms for band in bands if band.name == admitted.service_class), None)
    pressure = decisions.pressure_ratio(decisions.waiting_ms(here), slo_ms)
    if pressure <= decisions.SHIFT_FROM_PRESSURE_RATIO and not ladder_ratio:
        return False
    cached_ratio = here.cached_tokens / max(1, admitted.features.prompt_tokens)
    return decisions.shifts(pressure, cached_ratio, draw_of(admitted), ladder_ratio)
