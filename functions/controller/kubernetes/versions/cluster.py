"""Read a pool's services from the API server, and carry out a step of them. Blocks.

Services that lose replicas are written first, so that never more are asked for than allowed. A second service's
budget is written before the service; both are removed together.
"""

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from functions.controller.kubernetes import scaling
from functions.controller.kubernetes.api import KubeApi
from functions.controller.kubernetes.health import child_name
from functions.controller.kubernetes.objects import (
    BUDGET,
    BUDGET_OF_OLD_CLUSTERS,
    DEPLOYMENT,
    FIELD_MANAGER,
    INFERENCE_SERVICE,
    Body,
    is_being_deleted,
    uid_of,
    value_at,
    version_of,
)
from functions.controller.kubernetes.ownership import FIELD, Policy
from functions.controller.kubernetes.versions.plan import FoundPool, FoundService, PoolStep
from functions.controller.kubernetes.versions.second_service import (
    VERSIONS_MANAGER,
    is_as_wanted,
    is_second,
    pool_of,
    second_budget,
    second_service,
    uri_of,
)
from functions.decisions.rollout.service_counts import OWN

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SeenPool:
    own: Body  # the pool's own service, live
    seconds: Mapping[str, Body]  # by name
    found: FoundPool


def observe_pools(api: KubeApi, namespace: str, pools: Collection[str]) -> dict[str, SeenPool]:
    """Return those of `pools` that are on the cluster, by name. A pool whose own service is missing or being deleted is
    left out."""
    services = [
        each
        for each in api.list(INFERENCE_SERVICE, namespace).items
        if pool_of(each) in pools and not is_being_deleted(each)
    ]
    children = {each["metadata"]["name"]: each for each in api.list(DEPLOYMENT, namespace).items} if services else {}
    found = {each["metadata"]["name"]: _found(each, children.get(child_name(each))) for each in services}
    seen: dict[str, SeenPool] = {}
    for own in services:
        pool, name = pool_of(own), own["metadata"]["name"]
        if is_second(own) or pool in seen:
            continue
        seconds = {each["metadata"]["name"]: each for each in services if is_second(each) and pool_of(each) == pool}
        counted = FoundPool(name, found[name], {second: found[second] for second in seconds})
        seen[pool] = SeenPool(own, seconds, counted)
    return seen


def _found(service: Body, deployment: Body | None) -> FoundService:
    by_scale = scaling.write_method_of(service) == "scale"
    asked = value_at(deployment or {}, "spec", "replicas") if by_scale else value_at(service, *FIELD)
    missing = 0 if by_scale else 1  # KServe's default for a missing number
    return FoundService(
        uri_of(service),
        asked if isinstance(asked, int) else missing,
        _status(deployment, "readyReplicas"),
        _status(deployment, "replicas"),
    )


def _status(deployment: Body | None, name: str) -> int:
    number = value_at(deployment or {}, "status", name)
    return number if isinstance(number, int) else 0


@dataclass(slots=True)
class PoolWriter:
    """Writer for one term."""

    api: KubeApi
    conflicts: Policy
    budgeted: set[str]  # second services whose budgets were written in this term

    def carry_out(self, seen: SeenPool, step: PoolStep, declared: Body | None) -> str:
        """Carry out a step. Return why not and what to do, or an empty text. `declared` is git's own service."""
        before = {OWN: seen.found.own.asked} | {name: each.asked for name, each in seen.found.seconds.items()}
        for name, count in sorted(step.counts.items(), key=lambda each: each[1] - before.get(each[0], 0)):
            if name == OWN:
                trouble = self._own(seen.own, count, is_another=count != before[OWN])
                if trouble:
                    return trouble
            elif name in step.makes or name in seen.seconds:
                uri = step.makes.get(name) or seen.found.seconds[name].uri
                self._second(seen, declared, name, uri, count)
        for name in step.removes:
            self._remove(seen.seconds[name])
        return ""

    def _own(self, own: Body, count: int, *, is_another: bool) -> str:
        if not is_another:
            return ""
        written = scaling.write_replicas(self.api, own, count, self.conflicts, over=frozenset({FIELD_MANAGER}))
        if written.changed:
            _log.info("%s: %d replicas", own["metadata"]["name"], written.replicas)
        return written.contested or written.pending

    def _second(self, seen: SeenPool, declared: Body | None, name: str, uri: str, count: int) -> None:
        live = seen.seconds.get(name)
        wanted = second_service(seen.own, declared, name, uri, count)
        if name not in self.budgeted:
            kind = BUDGET if self.api.serves(BUDGET) else BUDGET_OF_OLD_CLUSTERS
            self.api.server_side_apply(second_budget(seen.own, name, kind), manager=VERSIONS_MANAGER, force=True)
            self.budgeted.add(name)
        if live is None or not is_as_wanted(wanted, live):
            self.api.server_side_apply(wanted, manager=VERSIONS_MANAGER, force=True)
            _log.info("%s: %d replicas of %s", name, count, uri)

    def _remove(self, second: Body) -> None:
        name, namespace = second["metadata"]["name"], second["metadata"]["namespace"]
        kind = BUDGET if self.api.serves(BUDGET) else BUDGET_OF_OLD_CLUSTERS
        budget = self.api.get(kind, namespace, name)
        if budget is not None:
            self.api.delete(kind, namespace, name, uid=uid_of(budget))
        version = version_of(second)
        self.api.delete(INFERENCE_SERVICE, namespace, name, uid=uid_of(second), resource_version=version)
        self.budgeted.discard(name)
        _log.info("%s: removed", name)
