from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from functions.api.ids import TenantId
from functions.decisions.admission.fair_queue import FairQueue
from functions.decisions.admission.ticket import OVER, RUNNING, WAITING, Ticket

A, B, C = TenantId("a"), TenantId("b"), TenantId("c")


class Line:
    """One band whose tickets the tests add and dispatch."""

    def __init__(self) -> None:
        self.queue = FairQueue()
        self.count = 0

    def add_ticket(
        self, tenant: TenantId, cost: int = 100, weight: int = 1, deadline_s: float = 99.0, at_s: float = 0.0
    ) -> Ticket:
        self.count += 1
        ticket = Ticket(self.count, tenant, weight, 0, cost, cost, cost, deadline_s, at_s)
        flow = self.queue.flow(tenant, weight, at_s)
        ticket.state, ticket.flow = WAITING, flow
        self.queue.push(flow, ticket, at_s)
        return ticket

    def dispatch_next(self, now_s: float = 0.0) -> Ticket | None:
        flow = self.queue.peek()
        if flow is None:
            return None
        ticket = flow.head(self.queue.newest_first)
        ticket.state = RUNNING
        self.queue.remove(flow, ticket)
        self.queue.charge(flow, ticket.cost, now_s)
        return ticket

    def dispatch_tenants(self, count: int) -> list[TenantId]:
        gone = [self.dispatch_next() for _ in range(count)]
        return [ticket.tenant for ticket in gone if ticket is not None]


def test_worked_example_of_counters() -> None:
    line = Line()
    for _ in range(8):
        line.add_ticket(A, weight=2)
        line.add_ticket(B)
    assert line.dispatch_tenants(6) == [A, B, A, A, B, A]


def test_idle_time_is_no_credit() -> None:
    line = Line()
    for _ in range(20):
        line.add_ticket(A)
    line.dispatch_tenants(10)
    for _ in range(5):
        line.add_ticket(B)
    assert Counter(line.dispatch_tenants(10)) == {A: 5, B: 5}


def test_unneeded_cost_is_credited() -> None:
    line = Line()
    for _ in range(4):
        line.add_ticket(A)
        line.add_ticket(B)
    line.dispatch_tenants(2)
    line.queue.correct(line.queue.flows[B], -90)
    assert line.dispatch_tenants(3) == [B, A, B]


def test_requests_of_a_tenant_go_by_deadline_then_arrival() -> None:
    line = Line()
    late, soon, same = (
        line.add_ticket(A, deadline_s=9),
        line.add_ticket(A, deadline_s=3),
        line.add_ticket(A, deadline_s=9),
    )
    assert [line.dispatch_next(), line.dispatch_next(), line.dispatch_next()] == [soon, late, same]


def test_under_overload_the_newest_goes_first() -> None:
    line = Line()
    first, second = line.add_ticket(A, deadline_s=1), line.add_ticket(A, deadline_s=2)
    line.queue.newest_first = True
    assert [line.dispatch_next(), line.dispatch_next()] == [second, first]


def test_parked_flow_is_skipped_until_unparked() -> None:
    line = Line()
    line.add_ticket(A)
    line.add_ticket(B)
    flow = line.queue.peek()
    assert flow is not None and flow.tenant == A
    line.queue.park(flow)
    assert line.dispatch_tenants(2) == [B]
    line.queue.unpark(flow)
    assert line.dispatch_tenants(2) == [A]


def test_late_tickets_are_found() -> None:
    line = Line()
    line.add_ticket(A, deadline_s=5.0, at_s=0.0)
    patient = line.add_ticket(A, at_s=1.0)
    line.add_ticket(A, at_s=5.5)
    found = []
    for flow, ticket in line.queue.iter_late(6.0):
        ticket.state = OVER
        line.queue.remove(flow, ticket)
        found.append(ticket.number)
    assert found == [1]
    assert line.queue.oldest_arrived_s() == patient.arrived_s


def test_idle_tenants_are_removed_with_their_heap_entries() -> None:
    line = Line()
    for number in range(500):
        line.add_ticket(TenantId(f"t{number}"))
    line.dispatch_tenants(500)
    line.queue.forget_idle_flows(100.0)
    assert not line.queue.flows and line.queue.active_weight == 0
    line.add_ticket(A, at_s=100.0)
    assert line.dispatch_tenants(1) == [A]
    assert len(line.queue._heap) < 50


@settings(max_examples=60, deadline=None)
@given(
    costs=st.lists(st.tuples(st.integers(1, 1000), st.integers(1, 1000)), min_size=20, max_size=150),
    weight=st.integers(1, 5),
    rounds=st.integers(1, 100),
)
def test_backlogged_tenants_differ_by_two_requests_at_most(
    costs: list[tuple[int, int]], weight: int, rounds: int
) -> None:
    line = Line()
    for cost_a, cost_b in costs:
        line.add_ticket(A, cost_a, weight)
        line.add_ticket(B, cost_b, weight)
    had: Counter[TenantId] = Counter()
    # both still wait: neither tenant can have dispatched all of its requests
    for _ in range(min(rounds, len(costs) - 1)):
        ticket = line.dispatch_next()
        assert ticket is not None
        had[ticket.tenant] += ticket.cost
    assert abs(had[A] - had[B]) <= 2 * max(max(pair) for pair in costs)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from("abcdef"), st.integers(1, 100), st.sampled_from(["go", "come", "leave"])),
        max_size=200,
    )
)
def test_each_ticket_leaves_once_and_the_sums_match(steps: list[tuple[str, int, str]]) -> None:
    line = Line()
    here: list[Ticket] = []
    for tenant, cost, step in steps:
        if step == "come":
            here.append(line.add_ticket(TenantId(tenant), cost))
        elif step == "leave" and here:
            ticket = here.pop(cost % len(here))
            ticket.state = OVER
            assert ticket.flow is not None
            line.queue.remove(ticket.flow, ticket)
        elif step == "go":
            ticket_or_none = line.dispatch_next()
            assert (ticket_or_none is None) == (not here)
            if ticket_or_none is not None:
                here.remove(ticket_or_none)
        assert line.queue.waiting == len(here)
        assert line.queue.queued_cost == sum(ticket.cost for ticket in here)
    assert len(line.dispatch_tenants(1000)) == len(here)


def test_tenant_with_a_pending_return_time_is_not_removed() -> None:
    queue = FairQueue()
    flow = queue.flow(TenantId("a"), 1.0, 0.0)
    told_s = flow.returns.reserve_place(1, 80, 200.0, 100.0, 0.0)
    queue.forget_idle_flows(told_s - 1.0)
    assert queue.flow(TenantId("a"), 1.0, told_s).returns.claim_place(1, told_s)
    flow.returns.reserve_place(2, 80, 200.0, 100.0, 300.0)
    queue.forget_idle_flows(1_000.0)
    assert not queue.flows, "nor is it remembered for ever"
