"""Replicas of each service of a pool whose base is in several versions, where a service is a set of replicas. Pure.

A cluster starts all replicas of one service alike. So a version that the pool's own service does not have is another
service's, for as long as it is needed; and once the pool's own one has been given the new weights, replicas go back to
it. `replica_shares` says how many replicas each version should have; here is how to come there, step by step, of N that
are wanted and a surge of S more:

    1  what bears nothing ends at once: the new version's that was taken back, the old one's that is through
    2  a service gives up replicas while as many are ready besides as are wanted: N, without a surge N - 1
    3  a service gets more while all that are asked for are at most N + S

What is not ready is given up for nothing. A step asks for no more than may be there when it is done: the replicas that
it gives up are drained first, and those that come wait for their accelerators.

Worked example (test_worked_example_of_four_replicas): N = 4, S = 1; own service v1, second service v2, as asked/ready.
1 of v2 is wanted: 4/4 and 0/0 become 4 and 1. Then 2: with 4/4 and 1/1 they become 3 and 2. Taken back at 3/3 and 2/2:
4 and 0, at once. Through at 1/1 and 4/4: 0 and 4; the own service has no replica to lose, and gets the new weights.
Then back to it: 0/0 and 4/4 become 1 and 4, then one after the other 2 and 3, 3 and 2, 4 and 1, 4 and 0.

Laws (tests/decisions/rollout/test_service_counts.py): never more than N + S are asked for, but for what is there; never
are fewer ready than are wanted by what a step does; every plan is through after finitely many steps.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from functions.decisions.rollout.replica_shares import VersionShares

OWN = ""  # the name of the pool's own service among the others


@dataclass(frozen=True, slots=True)
class ServiceReplicas:
    version: str | None  # None: weights that the base does not declare; such a service is left alone
    asked: int = 0
    ready: int = 0

    @property
    def ready_of_asked(self) -> int:
        """One that is being ended may still say that it is ready."""
        return min(self.ready, self.asked)


Services = Mapping[str, ServiceReplicas]  # by name; one for each version that is wanted, whether it exists or not


def service_targets(total: int, surge: int, shares: VersionShares, services: Services) -> dict[str, int]:
    """Where this should end while the versions are as they are."""
    more = surge if shares.is_moving and total else 0
    wanted = {**shares.others, shares.main: max(0, min(total, total + more - shares.others_total))}
    ends = {name: each.asked if each.version is None else 0 for name, each in services.items()}
    for version, count in wanted.items():
        names = sorted(name for name, each in services.items() if each.version == version)  # the own one first
        left = count
        for name in reversed(names[1:]):  # the same version twice: replicas go back while nothing else moves
            ends[name] = min(services[name].asked, left) if shares.is_moving else 0
            left -= ends[name]
        if names:
            ends[names[0]] = left
    return ends


def next_counts(
    total: int, surge: int, shares: VersionShares, services: Services, *, by_version: bool = True
) -> dict[str, int]:
    """What to ask each service for now. `by_version`: requests go only to replicas of the version that they mean, so
    that others bear none; without, whatever is ready answers."""
    ends = service_targets(total, surge, shares, services)
    counts = {name: each.asked for name, each in services.items()}
    if by_version and any(each.version == shares.main and each.ready_of_asked for each in services.values()):
        counts |= dict.fromkeys(_bear_nothing(shares, services), 0)
    _give_up(counts, ends, services, spare=_ready(counts, services) - max(0, total - (0 if surge else 1)))
    _add(counts, ends, shares, services, room=total + (surge if total else 0) - sum(counts.values()))
    return counts


def is_settled(total: int, shares: VersionShares, services: Services) -> bool:
    """Whether all is as it is without a rollout: nothing moves, and the own service has what no other channel needs."""
    main = {name for name, each in services.items() if each.version == shares.main}
    ends = service_targets(total, 0, shares, services)
    return not shares.is_moving and main == {OWN} and all(services[name].asked == ends[name] for name in services)


def _bear_nothing(shares: VersionShares, services: Services) -> Iterable[str]:
    bearing = {shares.main, *shares.others, None}
    return [name for name, each in services.items() if each.version not in bearing]


def _ready(counts: Mapping[str, int], services: Services) -> int:
    return sum(min(each.ready, counts[name]) for name, each in services.items())


def _give_up(counts: dict[str, int], ends: Mapping[str, int], services: Services, spare: int) -> None:
    """`spare`: so many that are ready may go. A cluster ends those first that are not ready."""
    for name in sorted(counts, reverse=True):
        ready = min(services[name].ready, counts[name])
        fewest = max(ends[name], ready - max(0, spare))
        if fewest < counts[name]:
            counts[name] = fewest
            spare -= max(0, ready - fewest)


def _add(counts: dict[str, int], ends: Mapping[str, int], shares: VersionShares, services: Services, room: int) -> None:
    """The version that most have comes first: what is taken back needs it at once."""
    for name in sorted(counts, key=lambda each: (services[each].version != shares.main, each)):
        more = max(0, min(ends[name] - counts[name], room))
        counts[name] += more
        room -= more
