"""A model id that stands for whichever pool suits the request: the request sketched, and the pool's base model."""

import dataclasses
from typing import Any

from functions.api.ids import PoolName, TenantId
from functions.decisions.catalogue import Catalogue, ResolvedModel
from functions.decisions.routing import classifier
from functions.decisions.routing.classifier import Sketch
from functions.gateway.intake.json_body import JsonObject

_BYTES_PER_TOKEN = 4


def classified(
    catalogue: Catalogue, tenant: TenantId, requested: str, parsed: JsonObject, body_bytes: int
) -> ResolvedModel | None:
    """The base model that is to answer; None where no classifier has that name, or none of its pools may be called."""
    entry = catalogue.classifiers.get(requested)
    if entry is None:
        return None

    def may_call(pool: PoolName) -> bool:
        return catalogue.resolve(tenant, pool) is not None

    pool = classifier.choose(entry, sketch(parsed, body_bytes), may_call)
    model = catalogue.resolve(tenant, pool) if pool is not None else None
    return dataclasses.replace(model, requested=requested) if model is not None else None


def sketch(parsed: JsonObject, body_bytes: int) -> Sketch:
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
