"""Fair queue of a band: virtual token counters between tenants, deadlines within one tenant.

    counter += cost / weight          at dispatch, with the expected cost; the rest of the true cost when it is known
    next     = the tenant with the least counter among those that wait and may go; ties by name
    inside   = earliest deadline, then first come; newest first while the band is `newest_first` (`bounds`)

When a tenant without waiting requests returns, its counter is raised to the least counter among the waiting tenants, or
to that of the last dispatched one: idle time is no credit (VTC, "Fairness in Serving Large Language Models", OSDI
2024). If two tenants of equal weight wait all the time, their service differs by at most two of the largest requests,

    |service_a - service_b| <= 2 x max(cost)        (test_backlogged_tenants_differ_by_two_requests_at_most)

Worked example (test_worked_example_of_counters): a (weight 2) and b (weight 1) wait with requests that cost 100. a goes
(counter 50), b (100), a (100), then a again, since a < b by name (150), b (200): two for one.

A tenant that holds more than its part of the running work is parked until some of it ends. Running requests are not
preempted, so the room of other tenants must not be used in the first place.

Every operation is O(log n). A waiting ticket is in two structures, which drop stale entries once they are half of it.
"""

from collections.abc import Iterator
from heapq import heapify, heappop, heappush

from functions.api.ids import TenantId
from functions.decisions.admission.ticket import SLACK, Flow, Ticket

_ACTIVE_S = 10.0  # a tenant counts as active for this long after its last request
_FORGET_S = 60.0


class FairQueue:
    """Queue of one band of one pool."""

    __slots__ = (
        "_floor",
        "_heap",
        "active_weight",
        "arrived",
        "arrived_cost",
        "flows",
        "kv_tokens",
        "last_dispatch_s",
        "newest_first",
        "queued_bytes",
        "queued_cost",
        "queued_kv_tokens",
        "reading_tokens",
        "refused",
        "running",
        "waiting",
    )

    def __init__(self) -> None:
        self.flows: dict[TenantId, Flow] = {}
        self.waiting = 0  # requests
        self.arrived = self.arrived_cost = 0  # total requests and their cost: admitted, rejected, or sent elsewhere
        self.refused = 0  # total, for lack of room
        self.queued_kv_tokens = self.queued_cost = self.queued_bytes = 0
        self.running = self.kv_tokens = self.reading_tokens = 0  # totals of dispatched requests
        self.newest_first = False
        self.active_weight = 0.0  # sum over recently active tenants
        self.last_dispatch_s = 0.0  # or the time at which the queue last became non-empty
        self._floor = 0.0  # the counter of the last dispatched tenant, before the dispatch
        self._heap: list[tuple[float, TenantId, int]] = []

    def flow(self, tenant: TenantId, weight: float, now_s: float) -> Flow:
        found = self.flows.get(tenant)
        if found is None:
            found = self.flows[tenant] = Flow(tenant, weight)
            self.active_weight += weight
        elif found.last_s + _ACTIVE_S < now_s:
            self.active_weight += weight
        found.weight = weight
        found.last_s = now_s
        return found

    def push(self, flow: Flow, ticket: Ticket, now_s: float) -> None:
        if not self.waiting:
            self.last_dispatch_s = now_s
        if not flow.queued_requests:
            flow.counter = max(flow.counter, self._least())
            flow.parked = False
            self._enter(flow)
        flow.push(ticket)
        self.waiting += 1
        self.queued_kv_tokens += ticket.kv_tokens
        self.queued_cost += ticket.cost
        self.queued_bytes += len(ticket.content)

    def peek(self) -> Flow | None:
        """Return the flow whose turn it is, without removing it, or None if all are parked or empty."""
        while self._heap:
            _, tenant, stamp = self._heap[0]
            flow = self.flows.get(tenant)
            if flow is not None and flow.stamp == stamp and flow.queued_requests and not flow.parked:
                return flow
            heappop(self._heap)
        return None

    def remove(self, flow: Flow, ticket: Ticket) -> None:
        """Remove a ticket that no longer waits from its flow and from the queue's sums. The ticket's state must have
        changed before."""
        flow.remove(ticket)
        self.waiting -= 1
        self.queued_kv_tokens -= ticket.kv_tokens
        self.queued_cost -= ticket.cost
        self.queued_bytes -= len(ticket.content)

    def charge(self, flow: Flow, cost: float, now_s: float) -> None:
        """Charge the flow for the dispatch of one of its requests. A flow without waiting requests first catches up
        with the flow that was served last."""
        if flow.counter < self._floor and not flow.queued_requests:
            flow.counter = self._floor
        self._floor = flow.counter
        flow.counter += cost / flow.weight
        self.last_dispatch_s = now_s
        if flow.queued_requests and not flow.parked:
            self._enter(flow)

    def correct(self, flow: Flow, cost: float) -> None:
        """Charge the flow the difference between true and expected cost of a request, which may be negative."""
        flow.counter += cost / flow.weight
        if flow.queued_requests and not flow.parked:
            self._enter(flow)

    def park(self, flow: Flow) -> None:
        """Pass over the flow and its waiting requests until `unpark`."""
        flow.parked = True

    def unpark(self, flow: Flow) -> None:
        if flow.parked:
            flow.parked = False
            if flow.queued_requests:
                self._enter(flow)

    def oldest_arrived_s(self) -> float | None:
        """Return the arrival time of the oldest waiting request of all flows that are not parked, or None."""
        return min((flow.oldest().arrived_s for flow in self._waiting_flows() if not flow.parked), default=None)

    def iter_late(self, now_s: float) -> Iterator[tuple[Flow, Ticket]]:
        """Yield the tickets whose deadline has passed. The caller must remove each before it requests the next."""
        for flow in list(self._waiting_flows()):
            while flow.queued_requests and flow.earliest().deadline_s <= now_s:
                yield flow, flow.earliest()

    def forget_idle_flows(self, now_s: float) -> None:
        """Forget flows that have been idle for long, and recompute the active weight. Call once a second."""
        gone = [
            flow.tenant
            for flow in self.flows.values()
            if not flow.queued_requests
            and not flow.running
            and flow.last_s + _FORGET_S < now_s
            and flow.returns.has_no_places(now_s)
        ]
        for tenant in gone:
            del self.flows[tenant]
        self.active_weight = sum(flow.weight for flow in self.flows.values() if flow.last_s + _ACTIVE_S >= now_s)

    def _waiting_flows(self) -> Iterator[Flow]:
        return (flow for flow in self.flows.values() if flow.queued_requests)

    def _least(self) -> float:
        first = self.peek()
        return first.counter if first is not None else self._floor

    def _enter(self, flow: Flow) -> None:
        flow.stamp += 1
        heappush(self._heap, (flow.counter, flow.tenant, flow.stamp))
        if len(self._heap) > 2 * len(self.flows) + SLACK:
            self._heap = [entry for entry in self._heap if self._is_current(entry)]
            heapify(self._heap)

    def _is_current(self, entry: tuple[float, TenantId, int]) -> bool:
        flow = self.flows.get(entry[1])
        return flow is not None and flow.stamp == entry[2]
