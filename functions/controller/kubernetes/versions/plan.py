"""One pool's next step: the replicas of each of its services now, and the second services to add or remove. Pure.

Neighbours: `functions.decisions.rollout.replica_shares` decides the replicas of each version, `service_counts` the
way there. Services are identified by their weights here.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from functions.controller.kubernetes.versions.second_service import service_name
from functions.decisions.rollout.replica_shares import VersionShares
from functions.decisions.rollout.service_counts import (
    OWN,
    ServiceReplicas,
    is_settled,
    next_counts,
    service_targets,
)


@dataclass(frozen=True, slots=True)
class FoundService:
    """A service and its Deployment, as the API server shows them."""

    uri: str  # its `shoal://` weights, or empty
    asked: int
    ready: int
    pods: int  # all pods that are not terminating


@dataclass(frozen=True, slots=True)
class PoolStep:
    counts: Mapping[str, int]  # by service; the pool's own one under `OWN`
    makes: Mapping[str, str]  # second services to add, with their weights
    removes: tuple[str, ...]  # second services that are not needed and have no pod left
    is_settled: bool  # nothing moves, and the pool's own service has its main version


@dataclass(frozen=True, slots=True)
class FoundPool:
    service: str  # name of the pool's own service
    own: FoundService
    seconds: Mapping[str, FoundService]  # by name


def pool_step(
    pool: FoundPool, total: int, surge: int, shares: VersionShares, uris: Mapping[str, str], *, by_version: bool = True
) -> PoolStep:
    """Decide the next step. `uris` are the weights of the base's versions by name; `by_version`: see `next_counts`."""
    versions = {uri: name for name, uri in uris.items()}
    found = {OWN: pool.own, **pool.seconds}
    services = {name: ServiceReplicas(_version(each, versions), each.asked, each.ready) for name, each in found.items()}
    makes = {
        service_name(pool.service, version, uris[version]): version
        for version in (shares.main, *sorted(shares.others))
        if version in uris and all(each.version != version for each in services.values())
    }
    services |= {name: ServiceReplicas(version) for name, version in makes.items()}
    counts = next_counts(total, surge, shares, services, by_version=by_version)
    ends = service_targets(total, surge, shares, services)
    removes = tuple(
        name
        for name, each in sorted(pool.seconds.items())
        if not (each.asked or each.pods or counts[name] or ends[name])
    )
    return PoolStep(
        counts={name: count for name, count in counts.items() if name in found or count},
        makes={name: uris[version] for name, version in makes.items() if counts[name]},
        removes=removes,
        is_settled=is_settled(total, shares, services),
    )


def _version(found: FoundService, versions: Mapping[str, str]) -> str | None:
    """Return the name of the service's version, or None if it has no weights. Weights that the base no longer declares
    are a version that is not wanted, named by their URI."""
    return versions.get(found.uri, found.uri) or None
