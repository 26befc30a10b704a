"""Models against the tenants they belong to and the pools that serve them."""

from collections.abc import Iterator

from functions.api.consistency.everything import Everything
from functions.api.consistency.references import no_such_pool
from functions.api.declared import Declared
from functions.api.kinds.inference_service import InferenceService
from functions.api.kinds.model import Model
from functions.api.problems import Problem, near_miss, shown


def problems(everything: Everything) -> Iterator[Problem]:
    tenants = {tenant.value.metadata.name for tenant in everything.tenants}
    in_order: list[str] = []  # the tenants, once somebody must be told of one that is near
    pools = everything.pools()
    for model in everything.models:
        spec = model.value.spec
        tenant, slash, _ = spec.id.partition("/")
        if slash and tenant not in tenants:
            in_order = in_order or sorted(tenants)
            message = f"begins with {shown(tenant)}, and there is no such Tenant"
            yield model.problem(["spec", "id"], message + near_miss(tenant, in_order))
        if spec.type == "lora" and spec.base is None:
            continue  # told already
        service = pools.get(model.value.pool)
        if service is None:
            key = "base" if spec.type == "lora" else "id"
            yield model.problem(["spec", key], no_such_pool(model.value.pool, pools))
        elif spec.type == "base":
            yield from _same_weights(model, service.value)


def _same_weights(model: Declared[Model], service: InferenceService) -> Iterator[Problem]:
    served = service.spec.predictor.model
    for index, version in enumerate(model.value.spec.versions):
        if served is not None and served.storage_uri not in {None, version.artifact}:
            message = f"found {shown(version.artifact)}, but the pool's storageUri is {shown(served.storage_uri)}"
            yield model.problem(["spec", "versions", index, "artifact"], message)
