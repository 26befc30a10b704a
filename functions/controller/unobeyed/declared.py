"""Policies without effect, as the declarations alone show.

    PrefixCachingOff         `prefix.source: events` or `bloom`, but a pool's engines start without a prefix cache
    ClassifierMixesTasks     a classifier's pools have different routes: some requests may be rejected
    TasksDiffer              the pools of a fallback or cascade have different tasks: no request moves between them
    SignalNotMeasured        a scaling rule uses a figure that engines of the pool's task or role never have
    TaskContradictsEngine    the engine is started for another task than the pool's label says

Gateways enforce every limit of a QuotaPolicy and salt the cache of every tenant's requests in any pool
(test_every_limit_is_measured, test_every_route_carries_the_tenants_salt), so these have no findings.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from functions.api.consistency.everything import Everything, sorted_out
from functions.api.consistency.fallbacks import best_match
from functions.api.declared import Accepted, Declared
from functions.api.expressions import parse_scale_rule
from functions.api.kinds.autoscaling_policy import AutoscalingPolicy
from functions.api.kinds.catalogue import AnyObject
from functions.api.kinds.inference_service import TASK_LABEL, InferenceService, last_argument
from functions.api.kinds.routing_policy import Cascade, Fallback, RoutingPolicy
from functions.api.problems import shown
from functions.controller.unobeyed.findings import Unobeyed, unobeyed

NO_PREFIX_CACHING = "--no-enable-prefix-caching"
_NEVER_OF_POOLING = {  # by list of rules: metrics that a pooling engine never shows under load
    "scale_up": frozenset({"p95_inter_token", "p99_inter_token", "utilization"}),
    "scale_down": frozenset({"p95_inter_token", "p99_inter_token"}),
}
_NEVER_OF_PREFILL = dict.fromkeys(_NEVER_OF_POOLING, frozenset({"p95_inter_token", "p99_inter_token"}))
_KEYS = {"scale_up": "scaleUp", "scale_down": "scaleDown"}
_POOLING_CONVERSIONS = ("embed", "classify", "reward")  # values of vLLM's --convert

Pools = Mapping[str, Declared[InferenceService]]


def declared_findings(objects: Iterable[Declared[AnyObject]]) -> Iterator[Unobeyed]:
    """Yield the findings of consistent `objects`; accepted stand-ins of invalid objects are not checked."""
    everything = sorted_out(each for each in objects if not isinstance(each, Accepted))
    pools = everything.pools()
    for routing, governed in governed_pools(everything):
        yield from _prefixes(routing, [pools[pool] for pool in governed])
    for routing in everything.routing:
        yield from _classifier(routing, pools)
        yield from _steps(routing, pools)
    for scaling in everything.autoscaling:
        yield from _rules(scaling, pools)
    for service in everything.services:
        yield from _task(service)


def governed_pools(everything: Everything) -> list[tuple[Declared[RoutingPolicy], list[str]]]:
    """Return each routing policy with the declared pools for which it is the best match, possibly none."""
    by_pattern = {pattern: policy for policy in everything.routing for pattern in policy.value.spec.pools}
    matched = {pool: best_match(pool, by_pattern) for pool in everything.pools()}
    return [
        (policy, [pool for pool, pattern in matched.items() if pattern is not None and by_pattern[pattern] is policy])
        for policy in everything.routing
    ]


def uses_replica_prefixes(policy: RoutingPolicy) -> bool:
    """Return True if the policy itself sets a prefix source that needs replicas' reports; the default does not."""
    prefix = policy.spec.prefix
    return "source" in prefix.model_fields_set and prefix.source in {"events", "bloom"}


def _prefixes(policy: Declared[RoutingPolicy], services: Sequence[Declared[InferenceService]]) -> Iterator[Unobeyed]:
    if not uses_replica_prefixes(policy.value):
        return
    for service in services:
        model = service.value.spec.predictor.model
        if model is not None and NO_PREFIX_CACHING in model.args:
            source = policy.value.spec.prefix.source
            message = (
                f"found {source}, but {service.value.pool} is started with {NO_PREFIX_CACHING} at {service.source}, so "
                "its engines have no prefix cache; remove that argument, or give the pool a policy with source: sent"
            )
            yield unobeyed(policy, ("spec", "prefix", "source"), "PrefixCachingOff", message)


def _classifier(policy: Declared[RoutingPolicy], pools: Pools) -> Iterator[Unobeyed]:
    classifier = policy.value.spec.classifier
    otherwise = pools.get(classifier.otherwise) if classifier is not None else None
    if classifier is None or otherwise is None:
        return
    for index, rule in enumerate(classifier.rules):
        target = pools.get(rule.to)
        if target is not None and target.value.task != otherwise.value.task:
            message = (
                f"{rule.to} is for {target.value.task} and {classifier.otherwise} for {otherwise.value.task}: requests "
                f"for {classifier.model} are rejected if the rules choose the pool that does not serve their route; "
                "give all of a classifier's pools the same task"
            )
            yield unobeyed(policy, ("spec", "classifier", "rules", index, "to"), "ClassifierMixesTasks", message)


def _steps(policy: Declared[RoutingPolicy], pools: Pools) -> Iterator[Unobeyed]:
    spec = policy.value.spec
    kinds: tuple[tuple[str, tuple[Fallback | Cascade, ...]], ...] = (
        ("fallback", spec.fallback),
        ("cascade", spec.cascade),
    )
    for key, steps in kinds:
        for index, step in enumerate(steps):
            source, target = pools.get(step.from_), pools.get(step.to)
            if source is not None and target is not None and source.value.task != target.value.task:
                message = (
                    f"{step.from_} is for {source.value.task} and {step.to} for {target.value.task}, so no "
                    f"request can move there; name a pool for {source.value.task}, or remove this step"
                )
                yield unobeyed(policy, ("spec", key, index, "to"), "TasksDiffer", message)


def _rules(policy: Declared[AutoscalingPolicy], pools: Pools) -> Iterator[Unobeyed]:
    spec = policy.value.spec
    service = pools.get(spec.pool)
    if service is None or (service.value.task == "generate" and not service.value.role):
        return
    never = _NEVER_OF_PREFILL if service.value.role else _NEVER_OF_POOLING
    for name, rules in (("scale_up", spec.scale_up), ("scale_down", spec.scale_down)):
        for index, text in enumerate(rules):
            metric = parse_scale_rule(text).metric
            if metric in never[name]:
                does = service.value.role or service.value.task
                message = (
                    f"found {shown(text)}, but engines that {does} produce no tokens one by one, so under "
                    f"load {metric} is unknown and the rule never holds; use queue_seconds or p99_ttft"
                )
                yield unobeyed(policy, ("spec", _KEYS[name], index), "SignalNotMeasured", message)


def _task(service: Declared[InferenceService]) -> Iterator[Unobeyed]:
    model = service.value.spec.predictor.model
    wrong = _contradiction(service.value.task, model.args) if model is not None else ""
    if wrong:
        yield unobeyed(service, ("metadata", "labels"), "TaskContradictsEngine", wrong)


def _contradiction(task: str, args: tuple[str, ...]) -> str:
    """Return how the engine's arguments and the pool's task label disagree, or an empty text. Gateways would reject
    requests that the engine can answer, or send others."""
    runner, convert = last_argument(args, "--runner"), last_argument(args, "--convert")
    if task == "generate":
        for option, value, pools in (
            ("--runner", runner, ("pooling",)),
            ("--convert", convert, _POOLING_CONVERSIONS),
        ):
            if value in pools:
                return (
                    f"the engine is started with {option} {value}, but its pool has no label {TASK_LABEL}: gateways "
                    f"send it chat requests, which it rejects; add the label {TASK_LABEL}: embed, classify or score"
                )
        return ""
    if runner == "generate":
        return f"the label {TASK_LABEL} says {task}, but the engine is started with --runner generate; use pooling"
    if task != "score" and convert in _POOLING_CONVERSIONS and convert != task:
        return f"the label {TASK_LABEL} says {task}, but the engine is started with --convert {convert}; use {task}"
    return ""
