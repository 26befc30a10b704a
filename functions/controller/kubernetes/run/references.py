"""Which objects need which others, by key (`plural/name`): what must not vanish while somebody points at it. Pure."""

from collections.abc import Iterable, Iterator

from functions.api.declared import Declared
from functions.api.kinds.catalogue import AnyObject
from functions.api.kinds.model import Model
from functions.api.kinds.routing_policy import RoutingPolicy
from functions.api.kinds.tenant import Tenant


def referrers(objects: Iterable[Declared[AnyObject]]) -> dict[str, list[str]]:
    """For each object that is pointed at, the keys of those that do."""
    found: dict[str, list[str]] = {}
    for declared in objects:
        for target in dict.fromkeys(_targets(declared.value)):
            found.setdefault(target, []).append(declared.document.file)
    return found


def _targets(value: AnyObject) -> Iterator[str]:
    match value:
        case Tenant():
            yield f"quotapolicies/{value.spec.tier}"
        case Model():
            yield f"rolloutpolicies/{value.spec.rollout}"
        case RoutingPolicy():
            tiers = [*(step.tiers for step in value.spec.fallback), *(step.tiers for step in value.spec.cascade)]
            yield from (f"quotapolicies/{tier}" for names in tiers for tier in names)
