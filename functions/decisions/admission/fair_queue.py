"""Who of a band's tenants goes next: virtual token counters between tenants, deadlines inside one.

    counter += cost / weight          at dispatch, with the expected cost; the rest of the true cost when it is known
    next     = the tenant with the least counter among those that wait and may go; ties by name
    inside   = earliest deadline, then first come; newest first while the band is `newest_first` (`overload`)

A tenant that comes back from having nothing here is lifted to the least counter of those that wait, or to that of the
last one that went: idle time is no credit (VTC, "Fairness in Serving Large Language Models", OSDI 2024). Two tenants
of equal weight that both wait all the time get service that differs by at most two of the largest requests,

    |service_a - service_b| <= 2 x max(cost)        (test_backlogged_tenants_differ_by_two_requests_at_most)

Worked example (test_worked_example_of_counters): a (weight 2) and b (weight 1) wait with requests that cost 100. a goes
(counter 50), b (100), a (100), then a again, since a < b by name (150), b (200): two for one.

A tenant that holds more than its part of what runs is set aside (`park`) until some of it ends: what runs cannot be
taken back, so that the others' room must not be given away to begin with.

Everything is O(log n); a waiting ticket is in two structures, and what left early is swept out once it is half of them.
"""

from collections import deque
from collections.abc import Iterator
from heapq import heapify, heappop, heappush

from functions.api.ids import TenantId
from functions.decisions.admission.drain_rate import ReturnTimes
from functions.decisions.admission.ticket import WAITING, Ticket

_SLACK = 16  # entries of tickets that left, before looking at the share they make up
_ACTIVE_S = 10.0  # a tenant that came within this time may come again any moment
_FORGET_S = 60.0


class Flow:
    """One tenant in one band: what of it waits, what of it runs, and what it has had."""

    __slots__ = (
        "_by_age",
        "_by_deadline",
        "counter",
        "kv_tokens",
        "last_s",
        "parked",
        "queued_bytes",
        "queued_cost",
        "queued_kv_tokens",
        "queued_requests",
        "reading_tokens",
        "returns",
        "running",
        "stamp",
        "tenant",
        "weight",
    )

    def __init__(self, tenant: TenantId, weight: float) -> None:
        self.tenant = tenant
        self.weight = weight
        self.counter = 0.0
        self.last_s = 0.0
        self.queued_requests = self.queued_kv_tokens = self.queued_cost = self.queued_bytes = 0
        self.running = self.kv_tokens = self.reading_tokens = 0  # of what was dispatched
        self.stamp = 0  # of its entry in the queue's heap; an older entry means nothing
        self.parked = False
        self.returns = ReturnTimes()
        self._by_deadline: list[tuple[float, float, int, Ticket]] = []
        self._by_age: deque[Ticket] = deque()

    def push(self, ticket: Ticket) -> None:
        heappush(self._by_deadline, (ticket.deadline_s, ticket.arrived_s, ticket.number, ticket))
        self._by_age.append(ticket)
        self.queued_requests += 1
        self.queued_kv_tokens += ticket.kv_tokens
        self.queued_cost += ticket.cost
        self.queued_bytes += len(ticket.content)

    def head(self, newest_first: bool) -> Ticket:
        """The next one; there is one."""
        if newest_first:
            while self._by_age[-1].state != WAITING:
                self._by_age.pop()
            return self._by_age[-1]
        while self._by_deadline[0][3].state != WAITING:
            heappop(self._by_deadline)
        return self._by_deadline[0][3]

    def oldest(self) -> Ticket:
        """The one that has waited longest; there is one."""
        while self._by_age[0].state != WAITING:
            self._by_age.popleft()
        return self._by_age[0]

    def earliest(self) -> Ticket:
        return self.head(newest_first=False)

    def remove(self, ticket: Ticket) -> None:
        """It waits no more; its state is changed already."""
        self.queued_requests -= 1
        self.queued_kv_tokens -= ticket.kv_tokens
        self.queued_cost -= ticket.cost
        self.queued_bytes -= len(ticket.content)
        if len(self._by_deadline) > 2 * self.queued_requests + _SLACK:
            self._by_deadline = [entry for entry in self._by_deadline if entry[3].state == WAITING]
            heapify(self._by_deadline)
        if len(self._by_age) > 2 * self.queued_requests + _SLACK:
            self._by_age = deque(each for each in self._by_age if each.state == WAITING)


class FairQueue:
    """One band of one pool."""

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
        self.arrived = self.arrived_cost = 0  # requests and what they cost, ever: taken in, refused, or sent elsewhere
        self.refused = 0  # ever, for want of room
        self.queued_kv_tokens = self.queued_cost = self.queued_bytes = 0
        self.running = self.kv_tokens = self.reading_tokens = 0  # of what was dispatched
        self.newest_first = False
        self.active_weight = 0.0  # of the tenants that have come lately
        self.last_dispatch_s = 0.0  # or since when there has been somebody to dispatch
        self._floor = 0.0  # the counter of the one that went last, before it went
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
        """The tenant whose turn it is, of those that are not parked."""
        while self._heap:
            _, tenant, stamp = self._heap[0]
            flow = self.flows.get(tenant)
            if flow is not None and flow.stamp == stamp and flow.queued_requests and not flow.parked:
                return flow
            heappop(self._heap)
        return None

    def remove(self, flow: Flow, ticket: Ticket) -> None:
        """It waits no more, for whatever reason; its state is changed already."""
        flow.remove(ticket)
        self.waiting -= 1
        self.queued_kv_tokens -= ticket.kv_tokens
        self.queued_cost -= ticket.cost
        self.queued_bytes -= len(ticket.content)

    def charge(self, flow: Flow, cost: float, now_s: float) -> None:
        """One of its requests goes."""
        if flow.counter < self._floor and not flow.queued_requests:
            flow.counter = self._floor
        self._floor = flow.counter
        flow.counter += cost / flow.weight
        self.last_dispatch_s = now_s
        if flow.queued_requests and not flow.parked:
            self._enter(flow)

    def correct(self, flow: Flow, cost: float) -> None:
        """What one of its requests took more, or less, than was expected."""
        flow.counter += cost / flow.weight
        if flow.queued_requests and not flow.parked:
            self._enter(flow)

    def park(self, flow: Flow) -> None:
        """Set it aside until `unpark`."""
        flow.parked = True

    def unpark(self, flow: Flow) -> None:
        if flow.parked:
            flow.parked = False
            if flow.queued_requests:
                self._enter(flow)

    def oldest_arrived_s(self) -> float | None:
        """Since when the one that has waited longest waits, of those that are not set aside; None where nobody does."""
        return min((flow.oldest().arrived_s for flow in self._waiting_flows() if not flow.parked), default=None)

    def late(self, now_s: float) -> Iterator[tuple[Flow, Ticket]]:
        """Whose deadline has passed. Remove each before the next."""
        for flow in list(self._waiting_flows()):
            while flow.queued_requests and flow.earliest().deadline_s <= now_s:
                yield flow, flow.earliest()

    def tidy(self, now_s: float) -> None:
        """Once a second: forget whoever is gone for good, and count anew who is active."""
        gone = [
            flow.tenant
            for flow in self.flows.values()
            if not flow.queued_requests
            and not flow.running
            and flow.last_s + _FORGET_S < now_s
            and flow.returns.are_over(now_s)
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
        if len(self._heap) > 2 * len(self.flows) + _SLACK:
            self._heap = [entry for entry in self._heap if self._is_current(entry)]
            heapify(self._heap)

    def _is_current(self, entry: tuple[float, TenantId, int]) -> bool:
        flow = self.flows.get(entry[1])
        return flow is not None and flow.stamp == entry[2]
