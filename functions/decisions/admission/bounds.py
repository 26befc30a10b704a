"""Bounds on a pool's admission queue, by which a request is refused on arrival.

size        tokens, requests and bytes that may wait, in all and of one tenant; light tenants lose their headroom first
overload    a band whose oldest request waits too long: the newest go first, batch falls back to its floor
tolerance   the share of the allowed wait up to which a predicted wait is accepted

Neighbours: `queue` asks for each request that cannot be dispatched at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from functions.decisions.admission.fair_queue import FairQueue
from functions.decisions.admission.gate import PART_RATIO
from functions.decisions.admission.ticket import Flow, Ticket

# Overload of a band, and headroom of the queue by weight.
#
# A band is overloaded once the one that has waited longest has done so for more than a quarter of the promised time to
# first token, at every look for one such time; it is over when that was not so at any look for as long. While the
# interactive band is overloaded, the newest go first (those who have waited long have mostly given up, and serving them
# makes everyone late; `maxWait` says when they are refused); and batch falls back to its floor (`bands`).
# Worked example (test_worked_example_of_overload): 500 ms are promised. At 10.0 s, 10.25 s and 10.5 s the first in line
# has waited for more than 125 ms: overloaded from 10.5 s on.
#
# As the queue fills, the room of light tenants shrinks first:
#
#     room ratio = 0.5 + 0.5 x weight / heaviest weight
#
# Worked example (test_light_tenants_lose_their_room_first): of 2,000,000 tokens that may wait, a tenant of weight 1
# beside one of weight 8 is refused from 1,125,000 on, the heavy one only at 2,000,000.


_LONG_RATIO = 0.25  # of the promised time
_ALWAYS_RATIO = 0.5  # of the queue, open to every tenant


@dataclass(slots=True)
class Strain:
    """One band, over time."""

    overloaded: bool = False
    since_s: float | None = None  # since when it has looked other than `overloaded` says

    def look(self, waited_s: float, slo_s: float, now_s: float) -> bool:
        """The longest wait as of now; returns whether the band is overloaded."""
        if (waited_s > _LONG_RATIO * slo_s) == self.overloaded:
            self.since_s = None
        elif self.since_s is None:
            self.since_s = now_s
        elif now_s - self.since_s >= slo_s:
            self.overloaded, self.since_s = not self.overloaded, None
        return self.overloaded


def queue_headroom_ratio(weight: float, heaviest: float) -> float:
    """How full the queue may be for a tenant of this weight still to be taken in."""
    return _ALWAYS_RATIO + (1.0 - _ALWAYS_RATIO) * min(1.0, weight / heaviest)


MAX_QUEUED_REQUESTS = 20_000
MAX_QUEUED_BYTES = 256 << 20
TENANT_MAX_BYTES = 64 << 20
TENANT_MAX_REQUESTS = 512

BoundReason = Literal["queue_full", "tenant_queue_full", "low_tier"]


def bound_broken(
    ticket: Ticket, flow: Flow, queue: FairQueue, queues: Sequence[FairQueue], *,
    max_queued_tokens: int, heaviest: float,
) -> BoundReason | None:  # fmt: skip
    """Which bound one more of the flow would break, of those on what waits in all of the pool's queues."""
    queued_tokens = ticket.kv_tokens + sum(each.queued_kv_tokens for each in queues)
    part = max(PART_RATIO, flow.weight / max(queue.active_weight, flow.weight))
    if (
        queued_tokens > max_queued_tokens
        or sum(each.waiting for each in queues) >= MAX_QUEUED_REQUESTS
        or len(ticket.content) + sum(each.queued_bytes for each in queues) > MAX_QUEUED_BYTES
    ):
        return "queue_full"
    if (
        flow.queued_requests >= TENANT_MAX_REQUESTS
        or flow.queued_kv_tokens + ticket.kv_tokens > part * max_queued_tokens
        or flow.queued_bytes + len(ticket.content) > TENANT_MAX_BYTES
    ):
        return "tenant_queue_full"
    if queued_tokens > max_queued_tokens * queue_headroom_ratio(flow.weight, heaviest):
        return "low_tier"
    return None


# Wait tolerance: the share of the allowed wait up to which a predicted wait is accepted, learnt from late requests.
#
#     somebody's turn came in time:   ratio + STEP x LATE
#     somebody was late:              ratio - STEP x (1 - LATE)         between LEAST and MOST
#
# A wait foretold is a mean; the turns come sooner or later than that, by how much depends on the pool: sizes of
# requests, bursts, how steadily engines work. So the bound is moved until LATE of those that wait are late (Robbins
# and Monro's search for a quantile). Who would be refused late is then refused at once, mostly, and can go elsewhere.
# Worked example (test_worked_example_of_tolerance): from 0.9, two are late: 0.9 - 2 x 0.05 x 0.99 = 0.801. With 500 ms
# to wait, whoever is foretold more than 400 ms is refused. It takes 198 that are in time to be back.
#
# Only who had the band's whole time and was kept by the pool says something of the pool: not who set a deadline of his
# own, and not who waited for his own requests (test_deadlines_of_ones_own_say_nothing_of_the_pool).


LEAST, MOST = 0.1, 0.9  # of the time that there is
LATE = 0.01
_STEP = 0.05


class WaitTolerance:
    """One band's of a pool."""

    __slots__ = ("ratio",)

    def __init__(self) -> None:
        self.ratio = MOST

    def in_time(self) -> None:
        """Somebody waited, and its turn came."""
        self.ratio = min(MOST, self.ratio + _STEP * LATE)

    def late(self) -> None:
        """Somebody waited until it was too late."""
        self.ratio = max(LEAST, self.ratio - _STEP * (1.0 - LATE))
