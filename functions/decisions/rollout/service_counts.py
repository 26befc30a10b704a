"""Replica counts of each service of a pool whose base has several versions, if a service is a set of replicas.

A cluster starts all replicas of a service alike. So a version that the pool's own service does not have needs a
second service for a while. Once the own service has the new weights, replicas move back to it. `replica_shares` sets
the number of replicas of each version; this module moves there step by step, with N wanted replicas and a surge of S:

    1  a service that serves no share ends: the new version's after a rollback, the old one's after completion
    2  a service loses replicas while enough others are ready: N, without a surge N - 1
    3  a service gains replicas while the total requested is at most N + S

Replicas that are not ready are removed freely. A step requests no more replicas than may exist at its end: removed
replicas are drained first, and new ones wait for their accelerators.

Worked example (test_worked_example_of_four_replicas): N = 4, S = 1; own service v1, second service v2, as
asked/ready. 1 of v2 is wanted: 4/4 and 0/0 become 4 and 1. Then 2: with 4/4 and 1/1 they become 3 and 2. Rolled back
at 3/3 and 2/2: 4 and 0, in one step. Completed at 1/1 and 4/4: 0 and 4; the own service is empty, and gets the new
weights. Then back to it: 0/0 and 4/4 become 1 and 4, then one after the other 2 and 3, 3 and 2, 4 and 1, 4 and 0.

Laws (tests/decisions/rollout/test_service_counts.py): no step requests more than N + S, except what already exists;
no step leaves fewer ready than wanted; every plan ends after finitely many steps.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from functions.decisions.rollout.replica_shares import VersionShares

OWN = ""  # name of the pool's own service


@dataclass(frozen=True, slots=True)
class ServiceReplicas:
    version: str | None  # None for weights that the base does not declare; such a service is left alone
    asked: int = 0
    ready: int = 0

    @property
    def ready_of_asked(self) -> int:
        """Number of ready replicas, at most those requested: a replica that is ending may still report ready."""
        return min(self.ready, self.asked)


Services = Mapping[str, ServiceReplicas]  # by name; one for each wanted version, even if it does not exist yet


def service_targets(total: int, surge: int, shares: VersionShares, services: Services) -> dict[str, int]:
    """Return by service the replicas that it has in the end, while the versions stay as they are. `surge`: replicas
    beyond `total` during a rollout."""
    more = surge if shares.is_moving and total else 0
    wanted = {**shares.others, shares.main: max(0, min(total, total + more - shares.others_total))}
    ends = {name: each.asked if each.version is None else 0 for name, each in services.items()}
    for version, count in wanted.items():
        names = sorted(name for name, each in services.items() if each.version == version)  # the own service first
        left = count
        for name in reversed(names[1:]):  # the same version twice: replicas move back after the rollout
            ends[name] = min(services[name].asked, left) if shares.is_moving else 0
            left -= ends[name]
        if names:
            ends[names[0]] = left
    return ends


def next_counts(
    total: int, surge: int, shares: VersionShares, services: Services, *, by_version: bool = True
) -> dict[str, int]:
    """Return by service the replicas to request now, on the way to `service_targets`.

    `by_version`: requests go only to replicas of their version, so that others serve none; otherwise any ready
    replica answers.
    """
    ends = service_targets(total, surge, shares, services)
    counts = {name: each.asked for name, each in services.items()}
    if by_version and any(each.version == shares.main and each.ready_of_asked for each in services.values()):
        counts |= dict.fromkeys(_unused_services(shares, services), 0)
    _release_replicas(counts, ends, services, spare=_ready(counts, services) - max(0, total - (0 if surge else 1)))
    _add(counts, ends, shares, services, room=total + (surge if total else 0) - sum(counts.values()))
    return counts


def is_settled(total: int, shares: VersionShares, services: Services) -> bool:
    """Return True if no rollout is running and the own service alone has the main version."""
    main = {name for name, each in services.items() if each.version == shares.main}
    ends = service_targets(total, 0, shares, services)
    return not shares.is_moving and main == {OWN} and all(services[name].asked == ends[name] for name in services)


def _unused_services(shares: VersionShares, services: Services) -> Iterable[str]:
    bearing = {shares.main, *shares.others, None}
    return [name for name, each in services.items() if each.version not in bearing]


def _ready(counts: Mapping[str, int], services: Services) -> int:
    return sum(min(each.ready, counts[name]) for name, each in services.items())


def _release_replicas(counts: dict[str, int], ends: Mapping[str, int], services: Services, spare: int) -> None:
    """Lower `counts` towards `ends`, by at most `spare` ready replicas. A cluster ends the ones that are not ready
    first."""
    for name in sorted(counts, reverse=True):
        ready = min(services[name].ready, counts[name])
        fewest = max(ends[name], ready - max(0, spare))
        if fewest < counts[name]:
            counts[name] = fewest
            spare -= max(0, ready - fewest)


def _add(counts: dict[str, int], ends: Mapping[str, int], shares: VersionShares, services: Services, room: int) -> None:
    """Raise `counts` towards `ends`, by at most `room` replicas, first of the main version: a rollback needs it
    most."""
    for name in sorted(counts, key=lambda each: (services[each].version != shares.main, each)):
        more = max(0, min(ends[name] - counts[name], room))
        counts[name] += more
        room -= more
