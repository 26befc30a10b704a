"""Drain rate of a pool, the wait that it predicts for the next request, and return times for rejected requests.

    est_wait = cost ahead / (rate per replica x replicas x the band's part)
    ahead    = min(all that waits in the band, own tenant's part of it x weights of all that are active / own weight)

While requests wait all the time, the dispatch rate is the pool's capacity, and the estimate follows it. Otherwise the
dispatch rate is a lower bound, which can only raise the estimate. No wait is predicted from it until the pool has been
full, and again after ten seconds without being full, since slow replicas may have recovered meanwhile.
Worked example (test_worked_example_of_the_wait): 4 replicas at 5,000 tokens a second each, 60,000 tokens wait in the
band, of them 6,000 of the caller's tenant, weight 1 of 4: ahead is min(60,000, 24,000), so 24,000 / 20,000 = 1.2 s.

A rejected request receives the time at which there will be room. If all rejected requests returned together, most would
be rejected again. So each gets a place in a virtual queue, which drains at most of the tenant's part of the real rate.
A request that returns within its time, recognised by its content, is not rejected for its predicted wait. While places
are due, other requests of the tenant that find no room go to the end of the virtual queue instead of waiting. Tenants
do not move each other's places. An unclaimed place expires, and any request may use free room except for the last tenth
(`queue`). If a request returns in time and there is no room, it gets a new place ahead of the others.
Worked example (test_refused_requests_get_consecutive_return_times): three requests that cost 80 are rejected together,
the wait is 1 s, the tenant's part of the rate 100 a second. Their times are 1, 2 and 3 s: 80 / (0.8 x 100) apart.
"""

from itertools import islice
from zlib import crc32

_FOLLOW = 0.3  # weight of each new sample: two thirds of a change show after three seconds
_FORGET_S = 10.0
_SAMPLE_S = 1.0
_JITTER_RATIO = 0.25
MAX_RETRY_AFTER_S = 300.0  # returned if the request got no place in the virtual queue
_MAX_PLACES = 1_000  # per tenant
_LATE_S = 2.0  # Retry-After is in whole seconds, and requests take time to arrive
_KEPT_RATIO = 0.8  # share of the rate that is planned for returning requests
_LOOKED_AT = 8  # places checked for expiry per call


class Rate:
    """Rate of a counted amount, per replica and second."""

    __slots__ = ("_full_s", "_passed", "_since_s", "has_been_full", "per_replica")

    def __init__(self, now_s: float) -> None:
        self.per_replica = 0.0
        self.has_been_full = False
        self._passed = 0.0
        self._since_s = self._full_s = now_s

    def record_dispatched(self, amount: float) -> None:
        self._passed += amount

    def mark_full(self, now_s: float) -> None:
        """Record that a request was rejected: the pool is full even if no request waits."""
        self._full_s = now_s
        self.has_been_full = self.per_replica > 0.0

    def rate_so_far(self, now_s: float, replicas: int) -> float:
        """Return the amount per replica and second, or an estimate from this sample so far if there is none yet."""
        if self.per_replica or replicas <= 0:
            return self.per_replica
        return self._passed / max(_SAMPLE_S, now_s - self._since_s) / replicas

    def tick(self, now_s: float, replicas: int, full: bool) -> None:
        """End a sample and update the rate, which falls only if `full`: requests have waited for room all the time
        since the last call."""
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
    """Return the predicted wait in seconds by the module's formula; 0 if no rate is known, so that no request is
    rejected on a guess."""
    if drain_per_s <= 0.0:
        return 0.0
    ahead = min(ahead_band, ahead_own * max(1.0, active_weight / own_weight))
    return ahead / drain_per_s


class ReturnTimes:
    """Return times of one tenant's rejected requests, as a virtual queue. A request is known by its hash."""

    __slots__ = ("_next_s", "_places")

    def __init__(self) -> None:
        self._next_s = 0.0
        self._places: dict[
            int, tuple[float, float]
        ] = {}  # start and end of the time for which room is reserved; the first is due first

    def reserve_place(self, request: int, cost: float, wait_s: float, drain_per_s: float, now_s: float) -> float:
        """Reserve a return time for a rejected request and return the seconds until then. A request that comes back too
        early keeps its place; without a known rate, or if there are too many places, none is reserved."""
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

    def claim_place(self, request: int, now_s: float) -> bool:
        """Use up the place of a request that has come back; return False if it has none, or came before or after its
        time."""
        place = self._places.get(request)
        if place is None or not place[0] <= now_s <= place[1]:
            return False
        del self._places[request]
        return True

    def postpone_place(self, request: int, wait_s: float, now_s: float) -> float:
        """Reserve a new place, ahead of others, for a request that came in time and found no room; return its delay in
        seconds. No place is reserved if the delay reaches MAX_RETRY_AFTER_S."""
        if wait_s >= MAX_RETRY_AFTER_S:
            return MAX_RETRY_AFTER_S
        if len(self._places) < _MAX_PLACES:
            self._places[request] = (now_s + wait_s, now_s + (1.0 + _JITTER_RATIO) * wait_s + _LATE_S)
        return wait_s

    def has_due_place(self, until_s: float, now_s: float) -> bool:
        """Return True if a reserved place is due by `until_s`, so that a request without a place should not wait."""
        self._forget(now_s)
        return any(due_s <= until_s for due_s, _ in islice(self._places.values(), 1))

    def has_no_places(self, now_s: float) -> bool:
        """Return True if no places are left after expiring a few."""
        self._forget(now_s)
        return not self._places

    def __len__(self) -> int:
        return len(self._places)

    def _forget(self, now_s: float) -> None:
        gone = [request for request, (_, until_s) in islice(self._places.items(), _LOOKED_AT) if until_s < now_s]
        for request in gone:
            del self._places[request]
        if not self._places:
            self._next_s = 0.0  # the next request need not queue behind expired places


def retry_after_s(after_s: float, request_id: str) -> int:
    """Return `after_s` in whole seconds, at least one, with up to a quarter added by a hash of the request id."""
    spread = 1.0 + _JITTER_RATIO * (crc32(request_id.encode()) % 1024) / 1024
    return max(1, -int(-after_s * spread // 1))
