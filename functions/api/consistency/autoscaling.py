"""Autoscaling policies against the pools that they scale and the promises that their rules speak of."""

from collections.abc import Iterator

from functions.api.consistency.everything import Everything
from functions.api.consistency.fallbacks import best_match
from functions.api.consistency.references import no_such_pool
from functions.api.declared import Declared
from functions.api.expressions import TimesSlo, parse_scale_rule
from functions.api.kinds.admission_policy import AdmissionPolicy
from functions.api.kinds.autoscaling_policy import AutoscalingPolicy
from functions.api.kinds.inference_service import InferenceService
from functions.api.problems import Problem, shown


def doubles(everything: Everything) -> Iterator[Problem]:
    first: dict[str, Declared[AutoscalingPolicy]] = {}
    for policy in everything.autoscaling:
        known = first.setdefault(policy.value.spec.pool, policy)
        if known is not policy:
            message = f"the pool {shown(policy.value.spec.pool)} already has an AutoscalingPolicy, at {known.source}"
            yield policy.problem(["spec", "pool"], message)


def problems(everything: Everything) -> Iterator[Problem]:
    pools = everything.pools()
    admission = {pattern: policy for policy in everything.admission for pattern in policy.value.spec.pools}
    for policy in everything.autoscaling:
        pool = policy.value.spec.pool
        service = pools.get(pool)
        if service is None:
            yield policy.problem(["spec", "pool"], no_such_pool(pool, pools))
            continue
        yield from _bounds(policy, service)
        pattern = best_match(pool, admission)
        if pattern is not None:
            yield from _promised(policy, admission[pattern])


def _bounds(policy: Declared[AutoscalingPolicy], service: Declared[InferenceService]) -> Iterator[Problem]:
    """The pool starts with the service's minReplicas, and never has more than its maxReplicas."""
    replicas = policy.value.spec.replicas
    start, most = service.value.replica_bounds
    if replicas.max > most:
        message = f"found {replicas.max}; allowed: at most {most}, the maxReplicas at {service.source}"
        yield policy.problem(["spec", "replicas", "max"], message)
    elif start > replicas.max:
        message = f"found {replicas.max}; allowed: at least {start}, the minReplicas at {service.source}"
        yield policy.problem(["spec", "replicas", "max"], message)
    elif start < replicas.min:
        message = f"found {replicas.min}; allowed: at most {start}, the minReplicas at {service.source}"
        yield policy.problem(["spec", "replicas", "min"], message)


def _promised(policy: Declared[AutoscalingPolicy], admission: Declared[AdmissionPolicy]) -> Iterator[Problem]:
    """A rule that speaks of `slo` needs one: the interactive band's."""
    interactive = admission.value.spec.bands.interactive
    if interactive is not None and interactive.ttft_slo is not None:
        return
    for key, rules in (("scaleUp", policy.value.spec.scale_up), ("scaleDown", policy.value.spec.scale_down)):
        for index, text in enumerate(rules):
            if isinstance(parse_scale_rule(text).threshold, TimesSlo):
                message = f"found {shown(text)}, but the interactive band at {admission.source} has no ttftSlo"
                yield policy.problem(["spec", key, index], message)
