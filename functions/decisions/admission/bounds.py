"""Bounds of a pool's admission queue. A request that would exceed one is rejected on arrival.

size        tokens, requests and bytes that may wait, in all and per tenant; light tenants lose their headroom first
overload    a band whose oldest request waits too long: the newest go first, batch falls back to its floor
tolerance   the share of the allowed wait up to which a predicted wait is accepted
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from functions.decisions.admission.fair_queue import FairQueue
from functions.decisions.admission.gate import PART_RATIO
from functions.decisions.admission.ticket import Flow, Ticket

# Overload of a band, and headroom of the queue by weight.
#
# A band becomes overloaded if its oldest request had waited more than a quarter of the TTFT SLO at every check for one
# SLO. The overload ends after one SLO in which no check found that. While the interactive band is overloaded, its
# newest requests go first: most clients of the oldest have left, and serving them would make all requests late
# (`maxWait` limits their wait). Batch falls back to its floor (`bands`).
# Worked example (test_worked_example_of_overload): the SLO is 500 ms. At 10.0 s, 10.25 s and 10.5 s the oldest request
# has waited for more than 125 ms: overloaded from 10.5 s on.
#
# As the queue fills, the headroom of light tenants shrinks first:
#
#     room ratio = 0.5 + 0.5 x weight / heaviest weight
#
# Worked example (test_tenants_of_low_weight_lose_queue_room_first): 2,000,000 tokens may wait, and the heaviest
# tenant has weight 8. A tenant of weight 1 is rejected from 1,125,000 on, the heavy one only at 2,000,000.


_LONG_RATIO = 0.25  # a wait is long above this share of the SLO
_ALWAYS_RATIO = 0.5  # share of the queue that is open to every tenant


@dataclass(slots=True)
class Strain:
    """Overload state of one band."""

    overloaded: bool = False
    since_s: float | None = None  # start of the checks that contradict `overloaded`; None if the last one agreed

    def record_longest_wait(self, waited_s: float, slo_s: float, now_s: float) -> bool:
        """Record the longest wait at this moment and return True if the band is overloaded. The state changes only
        after waits have contradicted it for `slo_s`."""
        if (waited_s > _LONG_RATIO * slo_s) == self.overloaded:
            self.since_s = None
        elif self.since_s is None:
            self.since_s = now_s
        elif now_s - self.since_s >= slo_s:
            self.overloaded, self.since_s = not self.overloaded, None
        return self.overloaded


def queue_headroom_ratio(weight: float, heaviest: float) -> float:
    """Return the fill ratio of the queue up to which a tenant of this weight is admitted, which grows with the weight;
    1 for the heaviest."""
    return _ALWAYS_RATIO + (1.0 - _ALWAYS_RATIO) * min(1.0, weight / heaviest)


MAX_QUEUED_REQUESTS = 20_000
MAX_QUEUED_BYTES = 256 << 20
TENANT_MAX_BYTES = 64 << 20
TENANT_MAX_REQUESTS = 512

BoundReason = Literal["queue_full", "tenant_queue_full", "low_tier"]


def exceeded_bound(
    ticket: Ticket, flow: Flow, queue: FairQueue, queues: Sequence[FairQueue], *,
    max_queued_tokens: int, heaviest: float,
) -> BoundReason | None:  # fmt: skip
    """Return the bound that one more request of the flow would exceed, or None. The bounds of all are over all queues
    of the pool, those of a tenant over its flow."""
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
#     a request was dispatched in time:   ratio + STEP x LATE
#     a request was late:                 ratio - STEP x (1 - LATE)         between LEAST and MOST
#
# A predicted wait is a mean. Real waits scatter around it, depending on request sizes, bursts and the engines'
# steadiness. The ratio moves until a share LATE of the waiting requests is late (Robbins and Monro's search for a
# quantile). Most requests that would time out in the queue are then rejected on arrival and can be retried elsewhere.
# Worked example (test_worked_example_of_tolerance): from 0.9, two are late: 0.9 - 2 x 0.05 x 0.99 = 0.801. With 500 ms
# to wait, a predicted wait of more than 400 ms is rejected. It takes 198 requests in time to return to 0.9.
#
# A late request counts only if it could wait the band's whole time and waited for the pool. A deadline set by the
# caller and a wait for the tenant's own requests do not count (test_own_deadlines_do_not_lower_the_pools_tolerance).


LEAST, MOST = 0.1, 0.9  # shares of the time until the deadline
LATE = 0.01
_STEP = 0.05


class WaitTolerance:
    """Wait tolerance of one band of a pool."""

    __slots__ = ("ratio",)

    def __init__(self) -> None:
        self.ratio = MOST

    def record_in_time(self) -> None:
        """Record that a waiting request was dispatched in time: the tolerance grows a little, up to MOST."""
        self.ratio = min(MOST, self.ratio + _STEP * LATE)

    def record_late(self) -> None:
        """Record that a request waited past its deadline: the tolerance shrinks, down to LEAST."""
        self.ratio = max(LEAST, self.ratio - _STEP * (1.0 - LATE))
