"""Model of a request: by its id, by a classifier's choice of pool, or the control version of its rollout."""

import dataclasses
from typing import Any

import msgspec
import orjson

from functions.api.ids import PoolName, TenantId
from functions.decisions.catalogue import Catalogue, ResolvedModel
from functions.decisions.request.access import Caller
from functions.decisions.routing import classifier
from functions.decisions.routing.classifier import Sketch
from functions.gateway.errors import RequestRejected, bad_request, model_not_found
from functions.gateway.intake.features import for_other_model
from functions.gateway.intake.json_body import JsonObject
from functions.gateway.intake.routes import Route, routes_for
from functions.gateway.request.request import Admitted
from functions.gateway.routing.splits import Splits

_BYTES_PER_TOKEN = 4


def resolve(catalogue: Catalogue, caller: Caller, parsed: JsonObject, body_bytes: int) -> ResolvedModel:
    """Return the requested model, or the base model of a classifier's pool; raises RequestRejected (400, 404)."""
    requested = parsed.get("model")
    if type(requested) is not str or not requested:
        raise bad_request("'model' is required: a string such as \"tenant/name\".", param="model")
    model = catalogue.resolve(caller.tenant, requested)
    if model is None:
        model = _classified(catalogue, caller.tenant, requested, parsed, body_bytes)
    if model is None:
        raise model_not_found(requested)
    return model


def wrong_task(model: ResolvedModel, route: Route) -> RequestRejected:
    """Return the 400 for a model that does not answer this route; an engine would answer a misleading 404."""
    usable = ", ".join(routes_for(model.task))
    message = f"The model {model.requested} does not answer {route.path}. It answers {usable}."
    return bad_request(message, param="model", code="wrong_model_type")


def as_control(admitted: Admitted, splits: Splits) -> Admitted:
    """Return the request for the control version of its rollout, because no replica has the candidate.

    A request outside a rollout is returned unchanged.
    """
    if admitted.split is None:
        return admitted
    control = admitted.split.control
    parsed = orjson.loads(admitted.upstream_body)
    parsed["model"] = control.engine_name
    split, body = splits.fall_back(admitted.split), orjson.dumps(parsed)
    features = for_other_model(admitted.features, parsed, admitted.route.output, control.engine_name)
    return msgspec.structs.replace(admitted, model=control, split=split, features=features, upstream_body=body)


def _classified(
    catalogue: Catalogue, tenant: TenantId, requested: str, parsed: JsonObject, body_bytes: int
) -> ResolvedModel | None:
    """Return the base model that a classifier chooses, or None without such a classifier or a callable pool."""
    entry = catalogue.classifiers.get(requested)
    if entry is None:
        return None

    def may_call(pool: PoolName) -> bool:
        return catalogue.resolve_base(tenant, pool) is not None

    pool = classifier.choose(entry, _sketch(parsed, body_bytes), may_call)
    model = catalogue.resolve_base(tenant, pool) if pool is not None else None
    return dataclasses.replace(model, requested=requested) if model is not None else None


def _sketch(parsed: JsonObject, body_bytes: int) -> Sketch:
    return Sketch(body_bytes // _BYTES_PER_TOKEN, bool(parsed.get("tools")), _last_text(parsed))


def _last_text(parsed: JsonObject) -> str:
    said: Any = parsed.get("messages") or parsed.get("prompt") or parsed.get("input") or ""
    if isinstance(said, list) and said:
        said = said[-1]
    if isinstance(said, dict):
        said = said.get("content")
    if isinstance(said, list):
        said = "\n".join(part["text"] for part in said if isinstance(part, dict) and type(part.get("text")) is str)
    return said[: classifier.LOOK_CHARS] if isinstance(said, str) else ""
