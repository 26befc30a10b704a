"""Which replicas a pool has, and which of them are warm: pure.

Replicas are numbered from 0 without gaps; `standby` are the numbers of those that are warm. So that nothing is started
or ended without need, a change touches as few as it can:

    more     ready warm ones are promoted first, the lowest numbers before others; new ones come at the end, as warm
             ones where enough serve
    fewer    one at a time; the highest number ends. Where that is a warm one, the highest that serves becomes warm in
             its place: it is empty of new requests at once, and loaded should it be needed again

Worked example (test_worked_example_of_the_roster): 0, 1, 2 serve and 3 is warm, four in all. Four are to serve and one
is to be warm: 3 is promoted and 4 begins warm. Three are to serve again: 4 ends, and 3 becomes warm.
"""

from collections.abc import Set
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Roster:
    count: int  # replicas in all
    standby: frozenset[int] = frozenset()  # the numbers of the warm ones

    def __post_init__(self) -> None:
        if not all(0 <= number < self.count for number in self.standby):
            raise ValueError(f"{sorted(self.standby)} are not all below {self.count}")

    @property
    def serving(self) -> int:
        return self.count - len(self.standby)

    def up_to(self, count: int) -> "Roster":
        """The same without the numbers from `count` on."""
        return Roster(min(count, self.count), frozenset(number for number in self.standby if number < count))


def toward(now: Roster, serving: int, warm: int, ready: Set[int] = frozenset()) -> Roster:
    """The next roster on the way to so many; `ready` are those that are loaded. Equal to `now` when it is there."""
    promoted = _promoted(now, serving, ready)
    if promoted.serving > serving:
        return _demoted(promoted, warm)
    if promoted.serving < serving or len(promoted.standby) < warm:
        return _grown(promoted, serving, warm)
    if len(promoted.standby) > warm:
        return _shrunk(promoted, ready)
    return promoted


def _promoted(now: Roster, serving: int, ready: Set[int]) -> Roster:
    """Those that can serve at once, then those that will soonest."""
    lacking = max(0, serving - now.serving)
    in_order = sorted(now.standby, key=lambda number: (number not in ready, number))
    return Roster(now.count, now.standby - frozenset(in_order[:lacking]))


def _grown(now: Roster, serving: int, warm: int) -> Roster:
    """New ones serve until enough do; the rest are warm."""
    count = max(now.count, serving + max(warm, len(now.standby)))
    new = range(now.count, count)
    to_serve = serving - now.serving
    return Roster(count, now.standby | frozenset(new[to_serve:]))


def _demoted(now: Roster, warm: int) -> Roster:
    """One serves less: the last one ends, or another is warm in the place of the last one."""
    last = now.count - 1
    highest = max(number for number in range(now.count) if number not in now.standby)
    if len(now.standby) < warm:
        return Roster(now.count, now.standby | {highest})
    if last == highest:
        return Roster(last, now.standby)
    return Roster(last, (now.standby | {highest}) - {last})


def _shrunk(now: Roster, ready: Set[int]) -> Roster:
    """One is warm less: the last one ends. Where that one serves, a loaded one serves in its place, or nothing ends."""
    last = now.count - 1
    if last in now.standby:
        return Roster(last, now.standby - {last})
    loaded = now.standby & ready
    return Roster(last, now.standby - {max(loaded)}) if loaded else now
