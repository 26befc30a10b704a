"""What has a seat on this machine, as rosters, beats and processes tell it: pure. `functions.decisions.seats` decides.

That a warm replica sleeps is known from its beat alone, never from its arguments: one that cannot, does not, or was
started again has a seat like any other. One that is not heard of (it begins, or the registry is away) is taken to be
awake, and is not ended for that.

A warm one that is to sleep gets FALLS_ASLEEP_S for it from when it was first seen loaded. Ended before, what was loaded
would be loaded again.
"""

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field

from functions.controller.scaling.roster import Roster, Sleepers
from functions.controller.scaling.signals import replicas_of
from functions.controller.scaling.standing import number_of
from functions.decisions.seats import Held, Seated, Wish
from functions.fleet.pool_report import PoolReport, ReplicaReport

FALLS_ASLEEP_S = 60.0  # three until it begins, and what it takes to copy 64 GiB of weights to host memory


@dataclass(frozen=True, slots=True)
class Seating:
    """One pool's roster, and what its replicas said last."""

    roster: Roster
    sleeps: bool = False  # it runs with --enable-sleep-mode
    heard: Mapping[int, ReplicaReport] = field(default_factory=dict)  # by number

    @property
    def asleep(self) -> frozenset[int]:
        return frozenset(number for number in self.roster.standby if self._is_loaded(number) and self._sleeps(number))

    @property
    def awake(self) -> frozenset[int]:
        """Warm ones that are loaded and do not sleep."""
        return frozenset(n for n in self.roster.standby if self._is_loaded(n) and not self._sleeps(n))

    def held(self, settling: Set[int] = frozenset()) -> Held:
        """`settling` are those that are about to sleep."""
        unheard = self.roster.standby - self.heard.keys() if self.sleeps else frozenset()
        loaded, asleep = len(self.awake), len(self.asleep)
        return Held(
            serving=self.roster.serving,
            loaded=loaded,
            loading=len(self.roster.standby) - loaded - asleep,
            asleep=asleep,
            spared=len(unheard) + len(self.awake & settling),
            sleeps=self.sleeps,
        )

    def sleepers(self, seated: Seated) -> Sleepers:
        return Sleepers(self.asleep, seated.wake)

    def _is_loaded(self, number: int) -> bool:
        return number in self.heard and self.heard[number].phase == "warm"

    def _sleeps(self, number: int) -> bool:
        return self.sleeps and self.heard[number].asleep


def heard_of(report: PoolReport | None, pool: str) -> dict[int, ReplicaReport]:
    """The replicas of a pool that are not silent, by number."""
    replicas = replicas_of(report, pool) if report is not None else []
    return {number: replica for replica in replicas if (number := number_of(replica)) is not None}


def settling(
    since_s: Mapping[tuple[str, int], float], pools: Mapping[str, Seating], now_s: float
) -> tuple[dict[tuple[str, int], float], dict[str, frozenset[int]]]:
    """Since when each that is to sleep is loaded, and by pool those that still have time to."""
    newest = {
        (name, number): since_s.get((name, number), now_s)
        for name, pool in pools.items()
        if pool.sleeps
        for number in pool.awake
    }
    in_time = [key for key, at_s in newest.items() if now_s - at_s < FALLS_ASLEEP_S]
    return newest, {name: frozenset(number for pool, number in in_time if pool == name) for name in pools}


def ending(engines: Iterable[str], pools: Mapping[str, Seating]) -> int:
    """How many engines, by their replicas' ids, run that no roster has: drained, or one more for a change."""
    wanted = {f"{name}-{number}" for name, pool in pools.items() for number in range(pool.roster.count)}
    return sum(replica_id not in wanted for replica_id in engines)


def in_words(wish: Wish, seated: Seated, pool: Seating, seats: int) -> str:
    """Why a pool has less than it should; "" where it has not."""
    if seated.serving < wish.serving and len(pool.asleep) > seated.wake:
        return f"a warm replica sleeps, and is woken when one of the {_PLACES.format(seats)}"
    if seated.serving == wish.serving and seated.warm < wish.warm and pool.sleeps:
        return f"a warm replica is loaded, one at a time, when one of the {_PLACES.format(seats)}"
    if (seated.serving, seated.warm) == (wish.serving, wish.warm):
        return ""
    return f"this machine runs {seats} engines at most (SHOAL_MAX_ENGINES)"


_PLACES = "{} engines that may be awake on this machine makes room (SHOAL_MAX_ENGINES)"
