"""References in policies and tenants to undeclared tiers, rollouts and pools."""

from collections.abc import Collection, Iterable, Iterator

from functions.api.consistency.everything import Everything
from functions.api.declared import Declared
from functions.api.kinds.admission_policy import AdmissionPolicy
from functions.api.kinds.catalogue import AnyObject
from functions.api.kinds.inference_service import POOL_LABEL, InferenceService
from functions.api.kinds.model import Model
from functions.api.kinds.routing_policy import Cascade, Fallback, RoutingPolicy
from functions.api.kinds.tenant import Tenant
from functions.api.problems import Problem, near_miss, shown

BUILT_IN_ROLLOUT = "default"


def reference_problems(everything: Everything) -> Iterator[Problem]:
    yield from _tiers(everything)
    yield from _rollouts(everything)
    pools = everything.pools()
    tiers = {quota.value.metadata.name for quota in everything.quotas}
    patterned: list[Declared[RoutingPolicy] | Declared[AdmissionPolicy]] = [*everything.routing, *everything.admission]
    for policy in patterned:
        for index, pattern in enumerate(policy.value.spec.pools):
            if not pattern.endswith("*") and pattern not in pools:
                yield policy.problem(["spec", "pools", index], no_such_pool(pattern, pools))
    for routing in everything.routing:
        yield from _hops(routing, pools, tiers)


def no_such_pool(name: str, pools: Collection[str]) -> str:
    return f"found {shown(name)}, and no InferenceService has that {POOL_LABEL}{near_miss(name, sorted(pools))}"


def no_such(kind: str, name: str, names: Collection[str]) -> str:
    listed = ", ".join(sorted(names)[:20]) or "none is declared"
    return f"found {shown(name)}, and there is no such {kind}; allowed: {listed}{near_miss(name, sorted(names))}"


def _tiers(everything: Everything) -> Iterator[Problem]:
    tiers = {quota.value.metadata.name for quota in everything.quotas}
    for tenant in everything.tenants:
        if tenant.value.spec.tier not in tiers:
            yield tenant.problem(["spec", "tier"], no_such("QuotaPolicy", tenant.value.spec.tier, tiers))


def _rollouts(everything: Everything) -> Iterator[Problem]:
    """Check that models' rollouts name a declared RolloutPolicy; the default, `default`, is built in if it is not
    declared."""
    rollouts = {rollout.value.metadata.name for rollout in everything.rollouts}
    for model in everything.models:
        spec = model.value.spec
        if spec.rollout not in rollouts and spec.rollout != BUILT_IN_ROLLOUT:
            yield model.problem(["spec", "rollout"], no_such("RolloutPolicy", spec.rollout, rollouts))


def _hops(policy: Declared[RoutingPolicy], pools: Collection[str], tiers: Collection[str]) -> Iterator[Problem]:
    spec = policy.value.spec
    yield from _classifier(policy, pools)
    hops: list[tuple[str, int, Fallback | Cascade]] = [
        *(("fallback", index, hop) for index, hop in enumerate(spec.fallback)),
        *(("cascade", index, hop) for index, hop in enumerate(spec.cascade)),
    ]
    for key, index, hop in hops:
        for end, pool in (("from", hop.from_), ("to", hop.to)):
            if pool not in pools:
                yield policy.problem(["spec", key, index, end], no_such_pool(pool, pools))
        for position, tier in enumerate(hop.tiers):
            if tier not in tiers:
                path = ("spec", key, index, "tiers", position)
                yield policy.problem(path, no_such("QuotaPolicy", tier, tiers))


def _classifier(policy: Declared[RoutingPolicy], pools: Collection[str]) -> Iterator[Problem]:
    classifier = policy.value.spec.classifier
    if classifier is None:
        return
    if classifier.model in pools:  # a pool's base model has its name; adapters' ids have a slash
        message = (
            f"{shown(classifier.model)} is already the name of a base model; choose one that no pool has, such as auto"
        )
        yield policy.problem(["spec", "classifier", "model"], message)
    ends: list[tuple[tuple[str | int, ...], str]] = [(("otherwise",), classifier.otherwise)]
    ends += [(("rules", index, "to"), rule.to) for index, rule in enumerate(classifier.rules)]
    for path, pool in ends:
        if pool not in pools:
            yield policy.problem(["spec", "classifier", *path], no_such_pool(pool, pools))


# Names that must be unique: objects of a kind, key ids in the installation, pools.


def name_problems(objects: Iterable[Declared[AnyObject]], everything: Everything) -> Iterator[Problem]:
    yield from _object_names(objects)
    yield from _key_ids(everything.tenants)
    yield from _pool_names(everything.services)


def _object_names(objects: Iterable[Declared[AnyObject]]) -> Iterator[Problem]:
    first: dict[tuple[str, str], Declared[AnyObject]] = {}
    for declared in objects:
        value = declared.value
        name = (value.kind, value.metadata.name)
        known = first.setdefault(name, declared)
        if known is not declared:
            message = f"{name[0]} {shown(name[1])} is declared twice; first at {known.source}"
            yield declared.problem(["metadata", "name"], message)


def _key_ids(tenants: Iterable[Declared[Tenant]]) -> Iterator[Problem]:
    """Check that key ids are unique: a key names only its id, which determines the tenant."""
    first: dict[str, tuple[Declared[Tenant], int]] = {}
    for tenant in tenants:
        for index, key in enumerate(tenant.value.spec.keys):
            known, known_index = first.setdefault(key.id, (tenant, index))
            if known is tenant and known_index == index:
                continue
            place = known.document.locate(("spec", "keys", known_index, "id"))
            user = f"tenant {known.value.metadata.name} at {place.file}:{place.line}"
            yield tenant.problem(("spec", "keys", index, "id"), f"the key id {shown(key.id)} is already used by {user}")


def _pool_names(services: Iterable[Declared[InferenceService]]) -> Iterator[Problem]:
    first: dict[str, Declared[InferenceService]] = {}
    for service in services:
        pool = service.value.pool or ""
        known = first.setdefault(pool, service)
        if known is not service:
            message = f"the pool {shown(pool)} is already served by {known.source}"
            yield service.problem(["metadata", "labels", POOL_LABEL], message)


# Models compared with their tenants and the pools that serve them.


def model_problems(everything: Everything) -> Iterator[Problem]:
    tenants = {tenant.value.metadata.name for tenant in everything.tenants}
    in_order: list[str] = []  # sorted tenants, filled when the first near miss is needed
    pools = everything.pools()
    for model in everything.models:
        spec = model.value.spec
        tenant, slash, _ = spec.id.partition("/")
        if slash and tenant not in tenants:
            in_order = in_order or sorted(tenants)
            message = f"begins with {shown(tenant)}, and there is no such Tenant"
            yield model.problem(["spec", "id"], message + near_miss(tenant, in_order))
        if spec.type == "lora" and spec.base is None:
            continue  # already reported
        service = pools.get(model.value.pool)
        if service is None:
            key = "base" if spec.type == "lora" else "id"
            yield model.problem(["spec", key], no_such_pool(model.value.pool, pools))
        elif spec.type == "base":
            yield from _same_weights(model, service.value)


def _same_weights(model: Declared[Model], service: InferenceService) -> Iterator[Problem]:
    """Check that the pool's storageUri, which it starts from before anything is published, is one of the model's
    versions; nothing is checked if either is missing."""
    served = service.spec.predictor.model
    spec = model.value.spec
    artifacts = [version.artifact for version in spec.versions]
    by_name = [f"shoal://{model.value.pool}@{version.name}" for version in spec.versions]
    if served is None or served.storage_uri is None or served.storage_uri in [*artifacts, *by_name] or not artifacts:
        return
    found = shown(artifacts[0]) if len(artifacts) == 1 else f"{len(artifacts)} versions"
    message = f"found {found}, but the pool's storageUri is {shown(served.storage_uri)}"
    yield model.problem(["spec", "versions", 0, "artifact"], message)
