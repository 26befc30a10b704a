"""How fast a pool works off what waits, and what that means for whoever comes now.

    est_wait = cost ahead / (rate per replica x replicas x the band's part)
    ahead    = min(all that waits in the band, own tenant's part of it x weights of all that are active / own weight)

While somebody waits all the time, what passes is what the pool can do, and the rate follows it. While nobody does, what
passes is a lower bound: it may raise the rate, and until the pool has been full, no wait is foretold from it. A pool
that was not full for ten seconds may have changed meanwhile (replicas that were slow are not any more): it starts anew.
Worked example (test_worked_example_of_the_wait): 4 replicas at 5,000 tokens a second each, 60,000 tokens wait in the
band, of them 6,000 of the caller's tenant, weight 1 of 4: ahead is min(60,000, 24,000), so 24,000 / 20,000 = 1.2 s.

Who is refused is told when there will be room. All that are refused would come back at once, so each is given a place
in a queue that exists only in arithmetic and drains at most of the tenant's part of the real rate. The request that
comes back in its time (it is known by its content) is not refused again; and while places are due, others of the tenant
that find no room are sent to the end instead of waiting. Nobody's flood moves another tenant's places. A place that
nobody comes for is forgotten, and room that is free at the moment is anybody's, but for the last tenth (`admission`).
Who comes in its time and finds no room all the same is put back, before the others.
Worked example (test_the_refused_are_asked_back_one_after_the_other): three requests that cost 80 are refused at once,
the wait is 1 s, the tenant's part of the rate 100 a second. They are told 1, 2 and 3 s: 80 / (0.8 x 100) apart.
"""

from itertools import islice
from zlib import crc32

_FOLLOW = 0.3  # of each new sample: a change shows to two thirds after three seconds
_FORGET_S = 10.0
_SAMPLE_S = 1.0
_JITTER_RATIO = 0.25
MAX_RETRY_AFTER_S = 300.0  # who is told this has no place: there is none within sight
_MAX_PLACES = 1_000  # of a tenant
_LATE_S = 2.0  # whole seconds are told, and requests travel
_KEPT_RATIO = 0.8  # of the rate, for those that come back: the rest passes
_LOOKED_AT = 8  # at most, for what is to be forgotten


class Rate:
    """Of anything counted, per replica and second."""

    __slots__ = ("_full_s", "_passed", "_since_s", "has_been_full", "per_replica")

    def __init__(self, now_s: float) -> None:
        self.per_replica = 0.0
        self.has_been_full = False
        self._passed = 0.0
        self._since_s = self._full_s = now_s

    def passed(self, amount: float) -> None:
        self._passed += amount

    def still_full(self, now_s: float) -> None:
        """Somebody was refused: nobody may be left to wait, but the pool is no less full for that."""
        self._full_s = now_s
        self.has_been_full = self.per_replica > 0.0

    def at_least(self, now_s: float, replicas: int) -> float:
        """The rate, or what has passed until now: for whoever is sent away before the pool was full for a while."""
        if self.per_replica or replicas <= 0:
            return self.per_replica
        return self._passed / max(_SAMPLE_S, now_s - self._since_s) / replicas

    def tick(self, now_s: float, replicas: int, full: bool) -> None:
        """Take a sample; `full`: somebody waited for room since the last one, all the time."""
        elapsed_s = now_s - self._since_s
        if elapsed_s <= 0.0 or replicas <= 0:
            return
        sample = self._passed / elapsed_s / replicas
        self._passed, self._since_s = 0.0, now_s
        if full:
            self._full_s = now_s
        elif now_s - self._full_s > _FORGET_S:
            self.has_been_full = False
        if full and not self.has_been_full:
            self.per_replica, self.has_been_full = max(sample, self.per_replica), True
        elif full or sample > self.per_replica:
            self.per_replica += _FOLLOW * (sample - self.per_replica)


def wait_s(ahead_band: float, ahead_own: float, own_weight: float, active_weight: float, drain_per_s: float) -> float:
    """The formula of the prologue; 0 where no rate is known, since nobody is refused on a guess."""
    if drain_per_s <= 0.0:
        return 0.0
    ahead = min(ahead_band, ahead_own * max(1.0, active_weight / own_weight))
    return ahead / drain_per_s


class ReturnTimes:
    """When one tenant's refused requests may come back, one after the other. A request is known by a hash."""

    __slots__ = ("_next_s", "_places")

    def __init__(self) -> None:
        self._next_s = 0.0
        self._places: dict[
            int, tuple[float, float]
        ] = {}  # from when and until when room is kept; the first is due first

    def send_away(self, request: int, cost: float, wait_s: float, drain_per_s: float, now_s: float) -> float:
        """Seconds until there will be room for it; who comes too early keeps the place that he has."""
        if drain_per_s <= 0.0:
            return wait_s
        self._forget(now_s)
        if request in self._places:
            return max(0.0, self._places[request][0] - now_s)
        due_s = max(self._next_s, now_s + wait_s)
        after_s = due_s - now_s
        if after_s >= MAX_RETRY_AFTER_S or len(self._places) >= _MAX_PLACES:
            return MAX_RETRY_AFTER_S
        self._next_s = due_s + cost / (_KEPT_RATIO * drain_per_s)
        self._places[request] = (due_s, due_s + _JITTER_RATIO * after_s + _LATE_S)
        return after_s

    def take(self, request: int, now_s: float) -> bool:
        """It has come back: whether there is a place for it, which it takes."""
        place = self._places.get(request)
        if place is None or not place[0] <= now_s <= place[1]:
            return False
        del self._places[request]
        return True

    def put_back(self, request: int, wait_s: float, now_s: float) -> float:
        """It had a place and came in its time, and there is no room: seconds until it may try again, before others."""
        if wait_s >= MAX_RETRY_AFTER_S:
            return MAX_RETRY_AFTER_S
        if len(self._places) < _MAX_PLACES:
            self._places[request] = (now_s + wait_s, now_s + (1.0 + _JITTER_RATIO) * wait_s + _LATE_S)
        return wait_s

    def are_due(self, until_s: float, now_s: float) -> bool:
        """Whether room is kept for somebody until then: who comes without a place had better not wait."""
        self._forget(now_s)
        return any(due_s <= until_s for due_s, _ in islice(self._places.values(), 1))

    def are_over(self, now_s: float) -> bool:
        """Whether nobody is expected any more, as far as one look tells."""
        self._forget(now_s)
        return not self._places

    def __len__(self) -> int:
        return len(self._places)

    def _forget(self, now_s: float) -> None:
        gone = [request for request, (_, until_s) in islice(self._places.items(), _LOOKED_AT) if until_s < now_s]
        for request in gone:
            del self._places[request]
        if not self._places:
            self._next_s = 0.0  # whoever was to come will not: the next one need not queue behind them


def retry_after_s(after_s: float, request_id: str) -> int:
    """Whole seconds, at least one, later by up to a quarter: spread by the request's id, the same for each asking."""
    spread = 1.0 + _JITTER_RATIO * (crc32(request_id.encode()) % 1024) / 1024
    return max(1, -int(-after_s * spread // 1))
