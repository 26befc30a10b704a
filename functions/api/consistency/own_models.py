"""Base models that a tenant owns, `tenant/name`: their pools, and adapters over them, are for that tenant only.

Worked example (tests/api/test_own_models.py): the Model acme/wiki, of type base, is served by the pool acme.wiki,
whose InferenceService is annotated `shoal.dev/dedicated-to: acme`; globex/tone cannot name that pool as its base.

Neighbours: `pools` checks rules for every dedicated pool.
"""

from collections.abc import Iterator, Mapping

from functions.api.consistency.everything import Everything
from functions.api.declared import Declared
from functions.api.kinds.inference_service import DEDICATED_TO_ANNOTATION, MODEL_LABEL, InferenceService
from functions.api.kinds.model import Model
from functions.api.problems import Problem, shown


def owners(everything: Everything) -> dict[str, str]:
    """Return by pool the tenant that owns its base model, for the pools named after a tenant's own model."""
    return {
        model.value.pool: model.value.owner
        for model in everything.models
        if model.value.spec.type == "base" and model.value.owner
    }


def problems(everything: Everything, owner_of: Mapping[str, str]) -> Iterator[Problem]:
    for service in everything.services:
        owner = owner_of.get(service.value.model_name or "")
        if owner is not None:
            yield from _dedicated(service, owner)
    pools = everything.pools()
    for model in everything.models:
        owner = owner_of.get(model.value.pool)
        if owner is None:
            continue
        if model.value.spec.type == "lora":
            yield from _adapter_owner(model, owner)
        elif model.value.pool in pools:
            yield from _named_as_pool(model, pools[model.value.pool].value)


def _dedicated(service: Declared[InferenceService], owner: str) -> Iterator[Problem]:
    found = service.value.dedicated_to
    if found != (owner,):
        said = f"found {shown(','.join(found))}" if found else "is required, and not there"
        message = f"{said}: the pool serves a model of {owner}'s own; allowed: {owner}"
        yield service.problem(("metadata", "annotations", DEDICATED_TO_ANNOTATION), message)


def _adapter_owner(model: Declared[Model], owner: str) -> Iterator[Problem]:
    if model.value.owner != owner:
        message = f"found {shown(model.value.pool)}, which serves a model of {owner}'s own; allowed: another pool"
        yield model.problem(["spec", "base"], message)


def _named_as_pool(model: Declared[Model], service: InferenceService) -> Iterator[Problem]:
    if service.model_name != service.pool:
        message = (
            f"its pool {service.pool} serves the model {service.model_name}, by its label {MODEL_LABEL}; allowed: a "
            "pool without that label"
        )
        yield model.problem(["spec", "id"], message)
