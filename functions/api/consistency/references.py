"""Names of tiers, rollouts and pools that policies and tenants use, and that nobody declares."""

from collections.abc import Collection, Iterator

from functions.api.consistency.everything import Everything
from functions.api.declared import Declared
from functions.api.kinds.admission_policy import AdmissionPolicy
from functions.api.kinds.inference_service import POOL_LABEL
from functions.api.kinds.routing_policy import Cascade, Fallback, RoutingPolicy
from functions.api.problems import Problem, near_miss, shown

BUILT_IN_ROLLOUT = "default"


def problems(everything: Everything) -> Iterator[Problem]:
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


def _no_such(kind: str, name: str, names: Collection[str]) -> str:
    listed = ", ".join(sorted(names)[:20]) or "none is declared"
    return f"found {shown(name)}, and there is no such {kind}; allowed: {listed}{near_miss(name, sorted(names))}"


def _tiers(everything: Everything) -> Iterator[Problem]:
    tiers = {quota.value.metadata.name for quota in everything.quotas}
    for tenant in everything.tenants:
        if tenant.value.spec.tier not in tiers:
            yield tenant.problem(["spec", "tier"], _no_such("QuotaPolicy", tenant.value.spec.tier, tiers))


def _rollouts(everything: Everything) -> Iterator[Problem]:
    """A model that names none has `default`, which is built in where nobody declares it."""
    rollouts = {rollout.value.metadata.name for rollout in everything.rollouts}
    for model in everything.models:
        spec = model.value.spec
        if spec.rollout not in rollouts and spec.rollout != BUILT_IN_ROLLOUT:
            yield model.problem(["spec", "rollout"], _no_such("RolloutPolicy", spec.rollout, rollouts))


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
                yield policy.problem(path, _no_such("QuotaPolicy", tier, tiers))


def _classifier(policy: Declared[RoutingPolicy], pools: Collection[str]) -> Iterator[Problem]:
    classifier = policy.value.spec.classifier
    if classifier is None:
        return
    if classifier.model in pools:  # a pool's base model bears its name; adapters' ids have a slash
        message = f"{shown(classifier.model)} is a base model already; take a name that no pool has, such as auto"
        yield policy.problem(["spec", "classifier", "model"], message)
    ends: list[tuple[tuple[str | int, ...], str]] = [(("otherwise",), classifier.otherwise)]
    ends += [(("rules", index, "to"), rule.to) for index, rule in enumerate(classifier.rules)]
    for path, pool in ends:
        if pool not in pools:
            yield policy.problem(["spec", "classifier", *path], no_such_pool(pool, pools))
