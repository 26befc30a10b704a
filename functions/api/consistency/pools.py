"""Pools of one model, and pools dedicated to tenants: references to missing objects, and declarations without effect.

pool       its model belongs to another pool and has the same task; its tenants exist and use it prefill    a pool
that it can compute prompts for exists weights    weights that differ from the model's are declared as a Model with
the pool's name, so that responses have
           their digest
tenant     a tenant that uses no shared pool has a pool of its own, for each model that it names rule       its pool
is one of several of a model that the policy governs; its tiers and tenants exist elsewhere  fallbacks, cascades,
classifiers and adapters name models, by the pools that have their names
"""

from collections.abc import Iterator, Mapping

from functions.api.consistency import own_models
from functions.api.consistency.everything import Everything
from functions.api.consistency.fallbacks import best_match
from functions.api.consistency.references import no_such, no_such_pool
from functions.api.declared import Declared
from functions.api.kinds.inference_service import DEDICATED_TO_ANNOTATION, MODEL_LABEL, InferenceService
from functions.api.kinds.prefill_role import ROLE_LABEL
from functions.api.kinds.routing_policy import RoutingPolicy
from functions.api.kinds.tenant import Tenant
from functions.api.problems import Problem, near_miss, shown

Pools = Mapping[str, Declared[InferenceService]]


def problems(everything: Everything) -> Iterator[Problem]:
    pools = everything.pools()
    uses = {tenant.value.metadata.name: tenant.value.spec.isolation.pools for tenant in everything.tenants}
    declared = {model.value.pool for model in everything.models if model.value.spec.type == "base"}
    owner_of = own_models.owners(everything)
    yield from own_models.problems(everything, owner_of)
    for service in everything.services:
        yield from _model_of(service, pools, declared)
        if service.value.model_name not in owner_of:
            yield from _owners(service, uses)
        yield from _prefill_targets(service, pools)
    for tenant in everything.tenants:
        yield from _own_pools(tenant, everything, pools)
    governing: dict[str, Declared[RoutingPolicy]] = {}
    for policy in everything.routing:
        for pattern in policy.value.spec.pools:
            governing.setdefault(pattern, policy)  # `fallbacks` reports a second one
    for policy in everything.routing:
        yield from _rules(policy, everything, pools, governing)
        yield from _steps(policy, pools)
    for model in everything.models:
        base = pools.get(model.value.pool)
        if model.value.spec.type == "lora" and base is not None and _is_beside(base.value):
            yield model.problem(["spec", "base"], _name_the_model(base.value))


def _is_beside(service: InferenceService) -> bool:
    """Return True if the service serves another pool's model, in a pool of its own."""
    return service.model_name != service.pool


def _name_the_model(service: InferenceService) -> str:
    return (
        f"found {shown(service.pool or '')}, a pool of the model {service.model_name}; allowed: {service.model_name}, "
        "which stands for all its pools"
    )


def _model_of(service: Declared[InferenceService], pools: Pools, declared: set[str]) -> Iterator[Problem]:
    value = service.value
    if not _is_beside(value):
        return
    path, name = ("metadata", "labels", MODEL_LABEL), value.model_name or ""
    model = pools.get(name)
    if model is None:
        yield service.problem(path, no_such_pool(name, pools))
    elif _is_beside(model.value):
        yield service.problem(path, _name_the_model(model.value))
    elif model.value.task != value.task:
        yield service.problem(path, f"{name} is for {model.value.task}, and this pool for {value.task}")
    elif value.pool not in declared and name in declared and _weights(value) != _weights(model.value):
        message = (
            f"found other weights than those of {name}; declare them as a Model of type base with the id {value.pool}, "
            "so that x-shoal-digest distinguishes them"
        )
        yield service.problem(("spec", "predictor", "model", "storageUri"), message)


def _prefill_targets(service: Declared[InferenceService], pools: Pools) -> Iterator[Problem]:
    """Check a prefill pool: another pool of its model must have the same quantization and tenants."""
    value = service.value
    if not value.role or value.model_name not in pools:
        return
    others = [other.value for other in pools.values() if other.value.model_name == value.model_name]
    alike = [
        other
        for other in others
        if not other.role and other.quantization == value.quantization and other.dedicated_to == value.dedicated_to
    ]
    if not alike:
        message = (
            f"no other pool of {value.model_name} has the same quantization and tenants, so this prefill pool would "
            "have no pool to compute prompts for"
        )
        yield service.problem(("metadata", "labels", ROLE_LABEL), message)


def _weights(service: InferenceService) -> str | None:
    return service.spec.predictor.model.storage_uri if service.spec.predictor.model is not None else None


def _owners(service: Declared[InferenceService], uses: Mapping[str, str]) -> Iterator[Problem]:
    path = ("metadata", "annotations", DEDICATED_TO_ANNOTATION)
    for owner in service.value.dedicated_to:
        if owner not in uses:
            message = f"found {shown(owner)}, and there is no such Tenant{near_miss(owner, sorted(uses))}"
            yield service.problem(path, message)
        elif uses[owner] == "shared":
            message = f"the Tenant {owner} has isolation.pools: shared; allowed with a pool: preferred, dedicated"
            yield service.problem(path, message)


def _own_pools(tenant: Declared[Tenant], everything: Everything, pools: Pools) -> Iterator[Problem]:
    spec, name = tenant.value.spec, tenant.value.metadata.name
    if spec.isolation.pools != "dedicated":
        return
    own = {service.value.model_name for service in everything.services if name in service.value.dedicated_to}
    if not own:
        message = (
            f"no pool is dedicated to {name}, so it could call no model: annotate a pool with {DEDICATED_TO_ANNOTATION}"
        )
        yield tenant.problem(["spec", "isolation", "pools"], message)
        return
    models = {model.value.spec.id: model.value.pool for model in everything.models}
    for index, pattern in enumerate(spec.models):
        base = models.get(pattern)
        if base is not None and base in pools and base not in own:
            message = f"{shown(pattern)} is served by {base}, of which no pool is dedicated to {name}"
            yield tenant.problem(["spec", "models", index], message)


def _rules(
    policy: Declared[RoutingPolicy],
    everything: Everything,
    pools: Pools,
    governing: Mapping[str, Declared[RoutingPolicy]],
) -> Iterator[Problem]:
    names = {
        "tiers": ("QuotaPolicy", {quota.value.metadata.name for quota in everything.quotas}),
        "tenants": ("Tenant", {tenant.value.metadata.name for tenant in everything.tenants}),
    }
    served = [service.value.model_name for service in everything.services]
    for index, rule in enumerate(policy.value.spec.placement):
        path = ("spec", "placement", index)
        target = pools.get(rule.to)
        if target is None:
            yield policy.problem((*path, "to"), no_such_pool(rule.to, pools))
            continue
        if target.value.role:
            message = f"found {shown(rule.to)}, a prefill pool, which answers no requests; allowed: another pool"
            yield policy.problem((*path, "to"), message)
            continue
        model = target.value.model_name or ""
        pattern = best_match(model, governing)
        if pattern is None or governing[pattern] is not policy:
            message = f"found {shown(rule.to)}, a pool of the model {model}, which this policy does not govern"
            yield policy.problem((*path, "to"), message)
        elif served.count(model) == 1:
            message = f"found {shown(rule.to)}, the only pool of its model; label another one {MODEL_LABEL}: {model}"
            yield policy.problem((*path, "to"), message)
        for key, (kind, known) in names.items():
            for position, name in enumerate(getattr(rule.when, key)):
                if name not in known:
                    yield policy.problem((*path, "when", key, position), no_such(kind, name, known))


def _steps(policy: Declared[RoutingPolicy], pools: Pools) -> Iterator[Problem]:
    spec = policy.value.spec
    ends: list[tuple[tuple[str | int, ...], str]] = []
    ends += [(("fallback", index, "to"), step.to) for index, step in enumerate(spec.fallback)]
    ends += [(("cascade", index, "to"), step.to) for index, step in enumerate(spec.cascade)]
    if spec.classifier is not None:
        ends.append((("classifier", "otherwise"), spec.classifier.otherwise))
        ends += [(("classifier", "rules", index, "to"), rule.to) for index, rule in enumerate(spec.classifier.rules)]
    for end, name in ends:
        if name in pools and _is_beside(pools[name].value):
            yield policy.problem(("spec", *end), _name_the_model(pools[name].value))
