"""Fallbacks and cascades of all routing policies together: requests must never return to a pool that they came from.

Fallbacks and cascades are edges between pools, each for some tiers or for all. A request belongs to one tier, so a
cycle counts only if one tier can complete it: 70b -> 8b for free and 8b -> 70b for enterprise is none.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from functions.api.consistency.everything import Everything
from functions.api.consistency.references import no_such_pool
from functions.api.declared import Declared
from functions.api.expressions import TimesSlo, parse_scale_rule
from functions.api.kinds.admission_policy import AdmissionPolicy
from functions.api.kinds.autoscaling_policy import AutoscalingPolicy
from functions.api.kinds.inference_service import InferenceService
from functions.api.kinds.routing_policy import RoutingPolicy
from functions.api.problems import Problem, shown

# Tiers x edges: beyond this, tiers are not distinguished, and a cycle that no tier could complete is rejected as
# well.
MAX_STEPS = 1_000_000
_ANY_OTHER = ""  # a tier that no edge names


@dataclass(frozen=True, slots=True)
class Hop:
    source: str
    target: str
    tiers: frozenset[str]  # empty: all
    policy: Declared[RoutingPolicy]
    path: tuple[str | int, ...]


def problems(everything: Everything) -> Iterator[Problem]:
    hops = [hop for policy in everything.routing for hop in _hops(policy)]
    tiers = sorted({tier for hop in hops for tier in hop.tiers})
    told: set[tuple[str | int, ...]] = set()
    if len(hops) * (len(tiers) + 1) > MAX_STEPS:
        graphs: Iterable[tuple[str, list[Hop]]] = [(_ANY_OTHER, hops)]
    else:
        graphs = ((tier, [hop for hop in hops if not hop.tiers or tier in hop.tiers]) for tier in (_ANY_OTHER, *tiers))
    for tier, edges in graphs:
        circle = find_circle(edges)
        if circle is None:
            continue
        closing = max(circle, key=lambda hop: (hop.policy.place, hop.path))
        where = (closing.policy.source, *closing.path)
        if where not in told:
            told.add(where)
            yield _problem(circle, closing, tier)


def find_circle(hops: Iterable[Hop]) -> list[Hop] | None:
    """Return the hops of one cycle, in order; None if there is none. Hops from a pool to itself are ignored."""
    leaving: dict[str, list[Hop]] = {}
    for edge in hops:
        if edge.source != edge.target:  # the policy's own findings report it
            leaving.setdefault(edge.source, []).append(edge)
    done: set[str] = set()
    for start in list(leaving):
        circle = _walk(start, leaving, done)
        if circle is not None:
            return circle
    return None


def _walk(start: str, leaving: Mapping[str, list[Hop]], done: set[str]) -> list[Hop] | None:
    """Return the hops of a cycle that can be reached from `start`, or None, and add the pools searched to `done`. Depth
    first with an explicit stack, because the input determines the depth."""
    way: list[Hop] = []
    on_way = {start}
    stack = [iter(leaving[start] if start not in done else [])]
    while stack:
        hop = next(stack[-1], None)
        if hop is None:
            stack.pop()
            left = way.pop().target if way else start
            on_way.discard(left)
            done.add(left)
        elif hop.target in on_way:
            return _from(hop.target, [*way, hop])
        elif hop.target not in done:
            way.append(hop)
            on_way.add(hop.target)
            stack.append(iter(leaving.get(hop.target, [])))
    return None


def _from(pool: str, way: list[Hop]) -> list[Hop]:
    first = next(index for index, hop in enumerate(way) if hop.source == pool)
    return way[first:]


def _problem(circle: list[Hop], closing: Hop, tier: str) -> Problem:
    index = circle.index(closing)
    around = [*circle[index + 1 :], *circle[: index + 1]]
    pools = " -> ".join([around[0].source, *(hop.target for hop in around)][:20])
    who = f" for the tier {tier}" if tier else ""
    return closing.policy.problem(closing.path, f"closes a cycle of pools{who}: {pools}; remove one of these steps")


def _hops(policy: Declared[RoutingPolicy]) -> Iterator[Hop]:
    spec = policy.value.spec
    for index, fallback in enumerate(spec.fallback):
        path = ("spec", "fallback", index, "to")
        yield Hop(fallback.from_, fallback.to, frozenset(fallback.tiers), policy, path)
    for index, cascade in enumerate(spec.cascade):
        yield Hop(cascade.from_, cascade.to, frozenset(cascade.tiers), policy, ("spec", "cascade", index, "to"))


# Patterns of pool names: no pool may have two policies of one kind that fit it equally well.


def doubles(everything: Everything) -> Iterator[Problem]:
    yield from _doubles(everything.routing)
    yield from _doubles(everything.admission)


def best_match(pool: str, patterns: Iterable[str]) -> str | None:
    """Return the pattern that fits a pool best: its exact name, else the longest prefix; None if none fits. Of `*`,
    `llama-*` and `llama-3-8b`, llama-3-8b matches the last, llama-3-70b the second, bge-m3 the first."""
    fitting = [it for it in patterns if it == pool or (it.endswith("*") and pool.startswith(it[:-1]))]
    return max(fitting, key=lambda it: (it == pool, len(it)), default=None)


def _doubles(policies: Iterable[Declared[RoutingPolicy] | Declared[AdmissionPolicy]]) -> Iterator[Problem]:
    first: dict[str, str] = {}
    for policy in policies:
        for index, pattern in enumerate(policy.value.spec.pools):
            if pattern in first:
                message = f"the pools {shown(pattern)} are already taken by {policy.value.kind} {first[pattern]}"
                yield policy.problem(["spec", "pools", index], message)
            else:
                first[pattern] = f"{policy.value.metadata.name} at {policy.source}"


# Autoscaling policies compared with the pools that they scale and the targets that their rules refer to.


def scaling_doubles(everything: Everything) -> Iterator[Problem]:
    first: dict[str, Declared[AutoscalingPolicy]] = {}
    for policy in everything.autoscaling:
        known = first.setdefault(policy.value.spec.pool, policy)
        if known is not policy:
            message = f"the pool {shown(policy.value.spec.pool)} already has an AutoscalingPolicy, at {known.source}"
            yield policy.problem(["spec", "pool"], message)


def scaling_problems(everything: Everything) -> Iterator[Problem]:
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
    """Check that the service's declared minReplicas, with which the pool starts, lies within the policy's bounds, and
    that the policy's maximum does not exceed the service's. Values that the autoscaler wrote there are not
    declarations."""
    replicas = policy.value.spec.replicas
    start, most = service.value.bounds_under(replicas.min)
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
    """Check that the interactive band has a `ttftSlo` if a scaling rule of the pool refers to it."""
    interactive = admission.value.spec.bands.interactive
    if interactive is not None and interactive.ttft_slo is not None:
        return
    for key, rules in (("scaleUp", policy.value.spec.scale_up), ("scaleDown", policy.value.spec.scale_down)):
        for index, text in enumerate(rules):
            if isinstance(parse_scale_rule(text).threshold, TimesSlo):
                message = f"found {shown(text)}, but the interactive band at {admission.source} has no ttftSlo"
                yield policy.problem(["spec", key, index], message)
