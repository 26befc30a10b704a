"""Admission for one pool end to end: tickets arrive and end, on a clock that the tests advance."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from functions.api.ids import ReplicaId, TenantId
from functions.api.snapshot import AdmissionEntry, BandEntry
from functions.decisions.admission.bounds import MOST
from functions.decisions.admission.queue import Admission, Refuse
from functions.decisions.admission.ticket import NEW, OVER, RUNNING, WAITING, Ticket, cost_tokens
from functions.decisions.catalogue_policies import DEFAULT_ADMISSION
from tests.decisions.routing.test_routing import replica

INTERACTIVE, NEAR, BATCH = range(3)
PROMISED = AdmissionEntry(
    "p",
    ("*",),
    (BandEntry("interactive", 0.6, 500), BandEntry("near-real-time", 0.3, 2000), BandEntry("batch", 0.1)),
    max_queued_tokens=10_000,
)


class Pool:
    """A pool of one replica with room for 1,000 KV tokens in all, and the tickets sent to it."""

    def __init__(self, policy: AdmissionEntry = DEFAULT_ADMISSION, kv_tokens: int = 1_000) -> None:
        self.now_s = 100.0
        self.admission = Admission(policy, self.now_s)
        self.replica = replace(
            replica("r0", kv_capacity_tokens=-(-kv_tokens * 10 // 9)), id=ReplicaId("r0"), prefill_ms_per_token=0.01
        )
        self.admission.update_capacity([self.replica], self.now_s)
        self.tickets: list[Ticket] = []

    def submit(
        self,
        tenant: str = "a",
        kv: int = 100,
        band: int = INTERACTIVE,
        *,
        weight: float = 1.0,
        patience_s: float = 60.0,
    ) -> Ticket:
        """Submit one request; `state` of the ticket tells the outcome."""
        self.tickets.append(
            Ticket(
                len(self.tickets), TenantId(tenant), weight, band, kv // 2, kv, cost_tokens(kv // 2, kv // 2),
                self.now_s + patience_s, self.now_s,
            )
        )  # fmt: skip
        self.verdict = self.admission.arrive(self.tickets[-1], self.now_s)
        return self.tickets[-1]

    def end(self, *tickets: Ticket, cost: int | None = None) -> list[Ticket]:
        """End these requests and return the ones that are dispatched in their place."""
        for ticket in tickets:
            self.admission.record_end(ticket, cost)
        return self.serve()

    def serve(self) -> list[Ticket]:
        gone = []
        while (ticket := self.admission.next(self.now_s)) is not None:
            gone.append(ticket)
        return gone

    def pass_s(self, seconds: float) -> None:
        """Advance the clock and update capacity four times a second."""
        for _ in range(round(seconds * 4)):
            self.now_s += 0.25
            self.admission.update_capacity([replace(self.replica)], self.now_s)


def test_no_request_waits_while_the_pool_has_room() -> None:
    pool = Pool()
    assert {pool.submit(f"t{number}").state for number in range(8)} == {RUNNING}
    assert pool.admission.waiting == 0


def test_request_without_room_waits_until_another_ends() -> None:
    pool = Pool()
    first = pool.submit(kv=900)
    second = pool.submit(kv=900)
    assert (first.state, second.state) == (RUNNING, WAITING)
    assert pool.end(first) == [second]
    assert second.state == RUNNING


def test_small_requests_do_not_overtake_the_head_of_the_queue() -> None:
    pool = Pool()
    running, large = pool.submit("a", kv=900), pool.submit("b", kv=500)
    small = pool.submit("c", kv=50)
    assert (large.state, small.state) == (WAITING, WAITING)
    assert pool.end(running) == [large, small]


def test_urgent_bands_go_first_and_batch_keeps_its_share() -> None:
    pool = Pool()
    running = [pool.submit("a", kv=100) for _ in range(9)]
    batch, near, urgent = pool.submit("b", band=BATCH), pool.submit("c", band=NEAR), pool.submit("d")
    while not (batch.state == near.state == RUNNING):
        assert pool.end(running.pop())
    assert urgent.state == WAITING or urgent.number != batch.number
    while urgent.state == WAITING:
        pool.end(running.pop())


def test_batch_leaves_headroom_for_interactive() -> None:
    pool = Pool()
    states = [pool.submit(f"t{number}", band=BATCH).state for number in range(10)]
    assert states.count(RUNNING) == 7  # 0.67 of the pool, and the request that crosses the limit


def test_a_band_that_starved_goes_first() -> None:
    pool = Pool(kv_tokens=100)
    running, batch = pool.submit("a"), pool.submit("b", band=BATCH, patience_s=600)
    for _ in range(11):
        urgent = pool.submit("a", patience_s=600)
        pool.pass_s(1)
        (running,) = pool.end(running)
        if running is batch:
            break
    assert running is batch and urgent.state == WAITING


def test_one_tenant_cannot_fill_the_pool_while_others_are_there() -> None:
    pool = Pool()
    pool.end(pool.submit("quiet", kv=10))
    noisy = [pool.submit("noisy", kv=110) for _ in range(20)]
    assert [ticket.state for ticket in noisy].count(RUNNING) == 6  # its half, and a tenth of the pool for a burst
    assert pool.submit("quiet", kv=200).state == RUNNING
    pool.pass_s(11)  # the quiet tenant no longer counts
    assert len(pool.serve()) == 1  # 970 of 1,000 tokens are in use then


def test_request_that_would_miss_its_deadline_is_refused_at_once() -> None:
    pool = Pool(PROMISED)
    line = [pool.submit(f"t{number % 5}", kv=450, patience_s=0.25 * number) for number in range(8)]
    for _ in range(3):  # the pool is full all the time: one request of 450 a second
        pool.pass_s(1)
        running = [ticket for ticket in line if ticket.state == RUNNING]
        line += pool.end(*running[:1])
        line += [pool.submit(f"t{number}", kv=450, patience_s=60) for number in range(3)]
    late = pool.submit("new", kv=450, patience_s=0.5)
    assert late.state == OVER
    assert isinstance(pool.verdict, Refuse) and pool.verdict.reason == "saturated" and pool.verdict.after_s > 0.5


def test_waiting_request_expires_at_its_deadline() -> None:
    pool = Pool()
    running, waiting = pool.submit(kv=900), pool.submit(kv=900, patience_s=2.0)
    pool.pass_s(2)
    assert list(pool.admission.expire_late(pool.now_s)) == [waiting]
    assert waiting.state == OVER
    assert pool.end(running) == []


def test_late_request_is_dropped_when_its_turn_comes() -> None:
    pool = Pool()
    running, waiting = pool.submit(kv=900), pool.submit(kv=900, patience_s=2.0)
    pool.now_s += 3
    assert pool.end(running) == [waiting]
    assert waiting.state == OVER
    assert pool.admission.gate.running == 0


def test_withdrawn_request_leaves_the_queue() -> None:
    pool = Pool()
    running, gone, next_one = pool.submit(kv=900), pool.submit(kv=900), pool.submit(kv=900)
    pool.admission.withdraw(gone)
    assert pool.end(running) == [next_one]
    assert gone.state == OVER


@pytest.mark.parametrize(
    ("come", "reason"),
    [
        ([("a", 2_500, 8.0), ("b", 2_500, 8.0), ("c", 2_500, 8.0), ("d", 2_600, 8.0)], "queue_full"),
        ([("a", 4_000, 8.0), ("b", 100, 8.0), ("a", 2_000, 8.0)], "tenant_queue_full"),
        ([("a", 3_000, 8.0), ("b", 2_500, 8.0), ("c", 300, 1.0)], "low_tier"),
    ],
)
def test_queue_length_is_bounded(come: list[tuple[str, int, float]], reason: str) -> None:
    pool = Pool(PROMISED)
    pool.submit("first", kv=900, weight=8.0)
    for tenant, kv, weight in come:
        pool.pass_s(1)
        ticket = pool.submit(tenant, kv=kv, weight=weight)
    assert ticket.state == OVER
    assert isinstance(pool.verdict, Refuse) and pool.verdict.reason == reason


def test_queue_memory_is_bounded() -> None:
    pool = Pool()
    pool.submit(kv=900)
    for number in range(5):
        large = Ticket(1000 + number, TenantId(f"t{number}"), 1.0, 0, 1, 1_000, 1, 999.0, 100.0, True, bytes(60 << 20))
        verdict = pool.admission.arrive(large, pool.now_s)
    assert isinstance(verdict, Refuse) and verdict.reason == "queue_full"


def test_under_overload_the_newest_goes_first() -> None:
    pool = Pool(PROMISED)
    running = pool.submit("a", kv=900)
    old = pool.submit("b", kv=900)
    pool.pass_s(1)
    new = pool.submit("b", kv=900)
    assert pool.admission.is_overloaded
    assert pool.end(running) == [new]
    assert old.state == WAITING, "it may wait for as long as its band's maxWait"


def test_unused_expected_cost_is_credited() -> None:
    pool = Pool(kv_tokens=100)
    first = pool.submit("a")
    line = [pool.submit(tenant) for tenant in ("b", "a", "a", "b")]
    (second,) = pool.end(first, cost=10)
    assert second is line[0]
    (third,) = pool.end(second)
    (fourth,) = pool.end(third, cost=30)  # a has had 40, b 150
    assert (third, fourth) == (line[1], line[2])


def test_end_recorded_twice_counts_once() -> None:
    pool = Pool()
    ticket = pool.submit()
    pool.end(ticket)
    pool.end(ticket)
    gate = pool.admission.gate
    assert (gate.running, gate.kv_tokens, gate.reading_tokens) == (0, 0, 0)


def test_without_replicas_requests_pass_to_routing() -> None:
    pool = Pool()
    pool.submit(kv=900)
    waiting = pool.submit(kv=900)
    pool.now_s += 1
    pool.admission.update_capacity([], pool.now_s)
    assert pool.serve() == [waiting]


def test_a_first_token_makes_room_for_the_next_prompt() -> None:
    pool = Pool(kv_tokens=10**9)
    window = int(pool.admission.gate.reading_limit_tokens)
    assert window == 50_000  # 100 tokens a millisecond for a quarter of 2 s, the default as there is no SLO
    reading = pool.submit("a", kv=4 * window)
    waiting = pool.submit("a", kv=4 * window)
    assert (reading.state, waiting.state) == (RUNNING, WAITING)
    pool.admission.first_token(reading, took_s=0.1)
    assert pool.serve() == [waiting]


def test_request_waiting_for_its_adapter_does_not_block_prefill() -> None:
    pool = Pool(kv_tokens=10**9)
    cold = pool.submit("a", kv=4 * 50_000)
    waiting = pool.submit("a", kv=4 * 50_000)
    pool.admission.release_prefill_tokens(cold)
    assert pool.serve() == [waiting]
    pool.end(cold, waiting)
    assert pool.admission.gate.reading_tokens == 0


steps = st.lists(
    st.tuples(
        st.sampled_from(["come", "come", "come", "end", "leave", "read", "pass"]),
        st.integers(0, 5),
        st.integers(1, 600),
        st.integers(0, 2),
    ),
    max_size=120,
)


@settings(max_examples=80, deadline=None)
@given(steps)
def test_each_ticket_has_one_outcome_and_none_waits_beside_free_room(
    steps: list[tuple[str, int, int, int]],
) -> None:
    pool = Pool(PROMISED)
    outcomes: Counter[int] = Counter()
    for what, tenant, kv, band in steps:
        running = [ticket for ticket in pool.tickets if ticket.state == RUNNING]
        waiting = [ticket for ticket in pool.tickets if ticket.state == WAITING]
        gone: list[Ticket] = []
        if what == "come":
            ticket = pool.submit(f"t{tenant}", kv, band, patience_s=tenant + 0.5)
            if ticket.state in (RUNNING, OVER):
                outcomes[ticket.number] += 1
        elif what == "end" and running:
            gone = pool.end(running[kv % len(running)], cost=kv)
        elif what == "leave" and waiting:
            left = waiting[kv % len(waiting)]
            pool.admission.withdraw(left)
            outcomes[left.number] += 1
            gone = pool.serve()
        elif what == "read" and running:
            pool.admission.first_token(running[kv % len(running)], took_s=0.05)
            gone = pool.serve()
        elif what == "pass":
            pool.pass_s(0.25)
            gone = [*pool.admission.expire_late(pool.now_s), *pool.serve()]
        outcomes.update(ticket.number for ticket in gone)
        _check_sums(pool)
    assert all(outcomes[ticket.number] == (ticket.state != WAITING) for ticket in pool.tickets)
    pool.end(*(ticket for ticket in pool.tickets if ticket.state == RUNNING))
    for _ in range(1000):
        running = [ticket for ticket in pool.tickets if ticket.state == RUNNING]
        if not running:
            break
        pool.pass_s(0.25)
        list(pool.admission.expire_late(pool.now_s))
        pool.end(*running)
    assert pool.admission.waiting == 0 and pool.admission.gate.running == 0
    assert all(ticket.state == OVER for ticket in pool.tickets)


def _check_sums(pool: Pool) -> None:
    running = [ticket for ticket in pool.tickets if ticket.state == RUNNING]
    waiting = [ticket for ticket in pool.tickets if ticket.state == WAITING]
    gate, queues = pool.admission.gate, pool.admission.queues
    assert not any(ticket.state == NEW for ticket in pool.tickets)
    assert pool.admission.waiting == len(waiting) == sum(queue.waiting for queue in queues)
    assert gate.running == len(running) == sum(queue.running for queue in queues)
    assert gate.kv_tokens == sum(ticket.kv_tokens for ticket in running) == sum(queue.kv_tokens for queue in queues)
    assert gate.reading_tokens == sum(ticket.reading_tokens for ticket in running)
    assert len(running) <= 1 or gate.kv_tokens <= gate.kv_limit_tokens
    assert sum(ticket.kv_tokens for ticket in waiting) <= PROMISED.max_queued_tokens
    if waiting:
        assert running, "somebody waits for an empty pool"


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 8), st.integers(1, 8), st.integers(20, 60))
def test_backlogged_tenants_are_served_by_weight(weight_a: int, weight_b: int, rounds: int) -> None:
    pool = Pool(kv_tokens=100)
    for _ in range(2 * rounds):
        pool.submit("a", weight=weight_a, patience_s=1e6)
        pool.submit("b", weight=weight_b, patience_s=1e6)
    had: Counter[str] = Counter()
    for _ in range(rounds):
        (ticket,) = pool.end(*(ticket for ticket in pool.tickets if ticket.state == RUNNING))
        had[ticket.tenant] += ticket.cost
    cost = pool.tickets[0].cost
    assert abs(had["a"] / weight_a - had["b"] / weight_b) <= 2 * cost / min(weight_a, weight_b)


def test_refused_request_that_retries_on_time_is_admitted() -> None:
    pool = Pool(PROMISED)
    line = [pool.submit("a", kv=900, patience_s=0.25) for _ in range(2)]
    for _ in range(4):
        pool.pass_s(1)
        line += pool.end(*(ticket for ticket in line if ticket.state == RUNNING))
        line += [pool.submit("a", kv=900, patience_s=60) for _ in range(2)]
    refused = pool.submit("a", kv=900, patience_s=0.25)
    assert isinstance(pool.verdict, Refuse)
    for ticket in pool.tickets:
        pool.admission.withdraw(ticket)
    pool.now_s += pool.verdict.after_s
    assert pool.submit("a", kv=900, patience_s=0.25).state == OVER, "what is kept is another's"
    back = replace_ticket(refused, pool)
    pool.end(*(ticket for ticket in line if ticket.state == RUNNING))
    assert pool.admission.arrive(back, pool.now_s) == "dispatch"


def replace_ticket(former: Ticket, pool: Pool) -> Ticket:
    """Return the same request with the same patience."""
    return Ticket(
        10_000,
        former.tenant,
        1.0,
        0,
        former.prompt_tokens,
        former.kv_tokens,
        former.cost,
        pool.now_s + 0.25,
        pool.now_s,
    )


def test_worked_example_of_a_request_larger_than_a_replica() -> None:
    """The example of `admission_gate`; an earlier version emptied the pool for such a request and blocked all
    others.
    """
    admission = Admission(DEFAULT_ADMISSION, 0.0)
    ready = [
        replace(replica(name, kv_capacity_tokens=10_000), id=ReplicaId(name), prefill_ms_per_token=0.001)
        for name in ("r0", "r1", "r2", "r3")
    ]
    admission.update_capacity(ready, 0.0)

    def make_ticket(number: int, tenant: str, kv_tokens: int, band: int) -> Ticket:
        return Ticket(number, TenantId(tenant), 1.0, band, 10, kv_tokens, kv_tokens, 1_000.0, 0.0)

    small = [make_ticket(number, f"t{number % 10}", 1_000, INTERACTIVE) for number in range(33)]
    assert {admission.arrive(ticket, 1.0) for ticket in small} == {"dispatch"}  # 33,000 of 36,000
    huge = make_ticket(100, "huge", 300_000, BATCH)
    assert admission.arrive(huge, 1.0) == "wait"
    for ticket in small[:5]:
        admission.record_end(ticket, None)
    assert admission.next(1.0) is None  # 28,000 and 9,000 exceed the limit
    admission.record_end(small[5], None)
    assert admission.next(20.0) is huge
    assert admission.gate.kv_tokens == 27_000 + 9_000
    admission.record_end(small[6], None)
    for ticket in small[7:12]:
        admission.record_end(ticket, None)
    assert admission.arrive(make_ticket(101, "new", 1_000, INTERACTIVE), 20.0) == "dispatch"


def test_own_deadlines_do_not_lower_the_pools_tolerance() -> None:
    pool = Pool()
    pool.submit("busy", kv=450)
    pool.submit("busy", kv=450)
    for _ in range(50):
        pool.submit("hasty", kv=10, patience_s=0.01)
    pool.now_s += 1.0
    late = list(pool.admission.expire_late(pool.now_s))
    assert late
    for ticket in late:
        pool.admission.refuse_late(ticket, pool.now_s)
    assert pool.admission.tolerance[INTERACTIVE].ratio == MOST


def test_late_batch_requests_do_not_lower_interactive_tolerance() -> None:
    pool = Pool()
    pool.submit("busy", kv=450, patience_s=600.0)
    pool.submit("busy", kv=450, patience_s=600.0)
    for number in range(30):
        pool.submit(f"t{number}", kv=10, band=BATCH, patience_s=pool.admission.rules[BATCH].max_wait_s)
    pool.now_s += pool.admission.rules[BATCH].max_wait_s + 1.0
    for ticket in list(pool.admission.expire_late(pool.now_s)):
        pool.admission.refuse_late(ticket, pool.now_s)
    assert pool.admission.tolerance[BATCH].ratio < MOST
    assert pool.admission.tolerance[INTERACTIVE].ratio == MOST
