"""Admission control of one pool: dispatch, queue or reject.

    arrive(ticket) -> DISPATCH | WAIT | Refuse      next() -> the next ticket to dispatch, or None
    first_token(ticket), ended(ticket), withdraw(ticket)   report the progress of a ticket
    look(replicas)                                  update the pool's capacity, a few times a second

No clock, no I/O, no knowledge of requests beyond their tickets: the gateway and the simulator drive the same object,
one per pool. Each ticket has exactly one outcome: dispatched, rejected on arrival, late in the queue, or withdrawn.
While no request waits and each limit is half free, arriving and ending are additions.

    is there room (`gate`)? -> which band (`bands`)? -> which tenant, which of its requests (`fair_queue`)?

A small request never overtakes the head of the queue; otherwise large requests would never go. A tenant that holds more
than its part of the running work, its weight among the active ones, is passed over while others are active: running
requests are not preempted, and a long prompt occupies its replica for seconds (`gate` defines the part).

A request is rejected on arrival in three cases: its predicted wait (`drain_rate`) exceeds the tolerated share of its
remaining time (`bounds`); room is reserved for requests whose return time has come; or a bound on waiting tokens,
requests or bytes would be exceeded, in all or per tenant, light tenants first (`bounds`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Literal

from xxhash import xxh3_64_intdigest

from functions.api.snapshot import AdmissionEntry
from functions.decisions.admission import bands
from functions.decisions.admission.bands import STARVED_S, BandRules, rules_of
from functions.decisions.admission.bounds import (
    BoundReason,
    Strain,
    WaitTolerance,
    exceeded_bound,
    queue_headroom_ratio,
)
from functions.decisions.admission.drain_rate import Rate, wait_s
from functions.decisions.admission.fair_queue import FairQueue
from functions.decisions.admission.gate import Gate
from functions.decisions.admission.ticket import OVER, RUNNING, WAITING, Flow, Ticket
from functions.decisions.overload.ladder_formulas import AIM_RATIO, gives_way
from functions.decisions.routing.replicas import ReplicaView

KEPT_BELOW_RATIO = 0.9  # share of the pool; above it, room is reserved for requests whose return time has come
_SECOND_S = 1.0
_FULL = 0.9
_INTERACTIVE = 0

Reason = Literal[BoundReason, "saturated", "low_band", "queue_timeout"]


@dataclass(frozen=True, slots=True)
class Refuse:
    reason: Reason  # a metric label
    after_s: float  # predicted time until there is room


GIVES_WAY: Reason = "low_band"  # the overload ladder's refusal
Verdict = Literal["dispatch", "wait"] | Refuse


class Admission:
    """Admission control of one pool in one gateway. Owned by one event loop. Times are monotonic seconds."""

    __slots__ = (
        "_blocked", "_has_passed", "_second_s", "_strain", "drain", "gate", "heaviest", "kept_ratios",
        "max_queued_tokens", "queues", "rules", "tolerance", "waiting",
    )  # fmt: skip

    def __init__(self, policy: AdmissionEntry, now_s: float) -> None:
        self.queues = tuple(FairQueue() for _ in bands.LENT_RATIO)
        self.gate = Gate(now_s)
        self.drain = Rate(now_s)
        self.waiting = 0  # requests, in all bands
        self.heaviest = 1.0  # weight of an active tenant
        self.tolerance = tuple(WaitTolerance() for _ in self.queues)
        self.kept_ratios: Sequence[float] | None = (
            None  # share of each band's requests to admit while the ladder sheds (`ladder`)
        )
        self._strain = Strain()
        self._blocked: int | None = None  # band whose head found no room; -1: the head of a starved band
        self._has_passed = True  # a request was dispatched without waiting in this second
        self._second_s = now_s
        self.apply_policy(policy)

    def apply_policy(self, policy: AdmissionEntry) -> None:
        self.rules: tuple[BandRules, ...] = rules_of(policy)
        self.max_queued_tokens = policy.max_queued_tokens

    def arrive(self, ticket: Ticket, now_s: float) -> Verdict:
        gate = self.gate
        queue = self.queues[ticket.band]
        flow = queue.flow(ticket.tenant, ticket.weight, now_s)
        queue.arrived += 1
        queue.arrived_cost += ticket.cost
        if (
            not self.waiting
            and gate.running < gate.easy_requests
            and gate.kv_tokens + ticket.kv_tokens < gate.easy_kv_tokens
            and gate.reading_tokens < gate.easy_reading_tokens
            and flow.running < gate.part_requests
            and flow.kv_tokens < gate.part_kv_tokens
            and flow.reading_tokens + ticket.prompt_tokens < gate.part_reading_tokens
        ):
            self._has_passed = True
            self._dispatch(ticket, flow, queue, now_s)
            return "dispatch"
        is_expected = bool(flow.returns) and flow.returns.claim_place(xxh3_64_intdigest(ticket.content), now_s)
        if self.kept_ratios is not None and not is_expected and self._gives_way(ticket, self.kept_ratios, now_s):
            ticket.state = OVER
            return Refuse(GIVES_WAY, self._assign_return_time(ticket, flow, now_s))
        if self._may_pass(ticket, flow, queue, now_s, is_expected=is_expected):
            self._has_passed = self._has_passed or not self.waiting
            self._dispatch(ticket, flow, queue, now_s)
            return "dispatch"
        refusal = self._refusal(ticket, flow, queue, now_s, is_expected=is_expected)
        if refusal is not None:
            ticket.state = OVER
            return refusal
        ticket.state, ticket.flow = WAITING, flow
        queue.push(flow, ticket, now_s)
        self.waiting += 1
        return "wait"

    def next(self, now_s: float) -> Ticket | None:
        """Dispatch and return the next ticket; None if none may go now. A late one is returned with state OVER and must
        be rejected."""
        if not self.waiting:
            return None
        self._blocked = None
        starved = self._starved(now_s)
        for band in self._order(starved):
            queue = self.queues[band]
            flow = self._next_flow(queue, now_s)
            if flow is None:
                continue
            ticket = flow.head(queue.newest_first)
            if ticket.deadline_s <= now_s:
                self._expire(flow, ticket, now_s)
                return ticket
            if not self.gate.has_capacity(ticket, self._reads_little(flow, queue)):
                self._blocked = -1 if starved[band] else band
                self.gate.note_crowding(now_s)
                return None
            self._unqueue(ticket, RUNNING)
            self.tolerance[band].record_in_time()
            self._dispatch(ticket, flow, queue, now_s)
            return ticket
        return None

    def expire_late(self, now_s: float) -> Iterator[Ticket]:
        """Remove and yield the waiting tickets whose deadline has passed. The caller must reject each."""
        for queue in self.queues:
            for flow, ticket in queue.iter_late(now_s):
                self._expire(flow, ticket, now_s)
                yield ticket

    def refuse_late(self, ticket: Ticket, now_s: float) -> Refuse:
        """Return the refusal for a ticket that `next` or `expire_late` returned as late, and reserve its return
        time."""
        flow = self.queues[ticket.band].flow(ticket.tenant, ticket.weight, now_s)
        return Refuse("queue_timeout", self._assign_return_time(ticket, flow, now_s))

    def _expire(self, flow: Flow, ticket: Ticket, now_s: float) -> None:
        """Remove a late ticket from the queue as over; the caller rejects it. It lowers the wait tolerance, and marks
        the pool as full, if it had the band's whole time and waited for the pool."""
        if not flow.parked and ticket.deadline_s - ticket.arrived_s > 0.99 * self.rules[ticket.band].max_wait_s:
            self.tolerance[ticket.band].record_late()
            self.drain.mark_full(now_s)
        self._unqueue(ticket, OVER)
        self.queues[ticket.band].refused += 1

    def withdraw(self, ticket: Ticket) -> None:
        """Remove a waiting ticket whose client left, or that was stopped; any other ticket is ignored."""
        if ticket.state == WAITING:
            self._unqueue(ticket, OVER)

    def first_token(self, ticket: Ticket, took_s: float | None = None) -> None:
        """Record the first token of a ticket, `took_s` after its dispatch (None: unknown), and release its prefill
        tokens."""
        if ticket.reading_tokens:
            self.gate.window.record_prefill_end(ticket, took_s)
            self.release_prefill_tokens(ticket)

    def release_prefill_tokens(self, ticket: Ticket) -> None:
        """Release the ticket's tokens from the prefill window: its prompt is read, or waits until its adapter is
        loaded. Its tenant's flow is no longer passed over."""
        tokens = ticket.reading_tokens
        if not tokens or ticket.flow is None:
            return
        ticket.reading_tokens = 0
        self.gate.reading_tokens -= tokens
        self.queues[ticket.band].reading_tokens -= tokens
        ticket.flow.reading_tokens -= tokens
        if ticket.flow.parked:
            self.queues[ticket.band].unpark(ticket.flow)

    def record_end(self, ticket: Ticket, cost: int | None) -> None:
        """Record the end of a dispatched ticket and release what it holds; `cost` is its true cost, or None if unknown.
        Any other ticket is ignored."""
        if ticket.state != RUNNING or ticket.flow is None:
            return
        if ticket.reading_tokens:
            self.first_token(ticket)
        gate, queue, flow = self.gate, self.queues[ticket.band], ticket.flow
        kv_tokens = ticket.kv_tokens
        ticket.state = OVER
        gate.running -= 1
        gate.kv_tokens -= kv_tokens
        queue.running -= 1
        queue.kv_tokens -= kv_tokens
        flow.running -= 1
        flow.kv_tokens -= kv_tokens
        if cost is not None and cost != ticket.cost:
            queue.correct(flow, cost - ticket.cost)
        if flow.parked:
            queue.unpark(flow)

    def update_capacity(self, ready: Sequence[ReplicaView], now_s: float) -> None:
        """Update capacity and overload from the pool's ready replicas, and resume the flows that were passed over. Call
        `expire_late` and `next` afterwards."""
        interactive = self.queues[_INTERACTIVE]
        slo_s = self.rules[_INTERACTIVE].slo_s or _SECOND_S
        self.gate.update_capacity(ready, slo_s, now_s)
        while (ticket := self.gate.window.pop_due(now_s)) is not None:
            if ticket.state == RUNNING:
                self.first_token(ticket)
        since_s = interactive.oldest_arrived_s()
        interactive.newest_first = self._strain.record_longest_wait(
            now_s - since_s if since_s is not None else 0.0, slo_s, now_s
        )
        for queue in self.queues:
            for flow in queue.flows.values():
                queue.unpark(flow)
        if now_s - self._second_s >= _SECOND_S:
            self._run_each_second(now_s)

    def expected_wait_s(self, band: int, flow: Flow, cost: int) -> float:
        """Return the predicted wait of one more request of a tenant; 0 if no rate is known, or the pool has not been
        full lately."""
        queue = self.queues[band]
        ahead, own = cost + queue.queued_cost, cost + flow.queued_cost
        drain_per_s = self._per_s(self.drain.per_replica, band) if self.drain.has_been_full else 0.0
        return wait_s(ahead, own, flow.weight, queue.active_weight, drain_per_s)

    def band_wait_s(self, band: int, now_s: float) -> float:
        """Return the predicted seconds that the band's next request waits, at least the wait so far of its oldest
        one."""
        since_s = self.queues[band].oldest_arrived_s()
        per_s = self._per_s(self.drain.per_replica, band)
        ahead_s = self.queues[band].queued_cost / per_s if per_s > 0.0 else 0.0
        return max(ahead_s, now_s - since_s if since_s is not None else 0.0)

    @property
    def used_ratio(self) -> float:
        """Share of the pool that all running requests of this gateway use, in its scarcest resource."""
        return self._use_ratios()[1]

    @property
    def is_overloaded(self) -> bool:
        return self._strain.overloaded

    @property
    def _floors_batch(self) -> bool:
        return self._strain.overloaded or (self.kept_ratios is not None and self.kept_ratios[bands.BATCH] < 1.0)

    def _gives_way(self, ticket: Ticket, kept_ratios: Sequence[float], now_s: float) -> bool:
        """Return True if the overload ladder rejects the ticket: its band's queue is long, and the ticket's number is
        among those that the shed selects."""
        enough_s = AIM_RATIO * self.rules[ticket.band].max_wait_s
        return self.band_wait_s(ticket.band, now_s) > enough_s and gives_way(kept_ratios[ticket.band], ticket.number)

    def _dispatch(self, ticket: Ticket, flow: Flow, queue: FairQueue, now_s: float) -> None:
        gate = self.gate
        kv_tokens = ticket.kv_tokens
        if kv_tokens > gate.most_kv_tokens:
            kv_tokens = ticket.kv_tokens = ceil(gate.most_kv_tokens)
        reading_tokens = ticket.prompt_tokens
        if reading_tokens > gate.window.per_replica_tokens:
            reading_tokens = ceil(gate.window.per_replica_tokens)
        ticket.state, ticket.flow, ticket.reading_tokens = RUNNING, flow, reading_tokens
        ticket.content = b""  # free it: the ticket may run for minutes and is not queued again
        gate.running += 1
        gate.kv_tokens += kv_tokens
        gate.reading_tokens += reading_tokens
        queue.running += 1
        queue.kv_tokens += kv_tokens
        queue.reading_tokens += reading_tokens
        flow.running += 1
        flow.kv_tokens += kv_tokens
        flow.reading_tokens += reading_tokens
        ticket.dispatched_s = now_s
        queue.charge(flow, ticket.cost, now_s)
        self.drain.record_dispatched(ticket.cost)
        if not ticket.streams:
            gate.window.record_dispatch(ticket, now_s)

    def _may_pass(self, ticket: Ticket, flow: Flow, queue: FairQueue, now_s: float, *, is_expected: bool) -> bool:
        """Return True if a ticket may be dispatched on arrival without overtaking a waiting request."""
        if self._blocked is not None and ticket.band >= self._blocked:
            return False
        if flow.queued_requests or self._is_over_its_part(ticket, flow, queue, now_s):
            return False
        if self._next_flow(queue, now_s) is not None:
            return False
        ratios, total = self._use_ratios()
        if total >= KEPT_BELOW_RATIO and not is_expected and flow.returns.has_due_place(ticket.deadline_s, now_s):
            return False
        if not bands.may_dispatch(ticket.band, ratios, total, self.rules, self._floors_batch):
            return False
        return self.gate.has_capacity(ticket, self._reads_little(flow, queue))

    def _next_flow(self, queue: FairQueue, now_s: float) -> Flow | None:
        while (flow := queue.peek()) is not None:
            if not self._is_over_its_part(flow.head(queue.newest_first), flow, queue, now_s):
                return flow
            queue.park(flow)
        return None

    def _is_over_its_part(self, ticket: Ticket, flow: Flow, queue: FairQueue, now_s: float) -> bool:
        """Return True if the ticket must wait for another request of its tenant to end."""
        if not flow.running or queue.active_weight <= flow.weight:
            return False
        return self.gate.holds_full_share(flow, ticket, flow.weight / queue.active_weight, now_s)

    def _reads_little(self, flow: Flow, queue: FairQueue) -> bool:
        part = flow.weight / max(queue.active_weight, flow.weight)
        return flow.reading_tokens < part * self.gate.reading_limit_tokens

    def _order(self, starved: Sequence[bool]) -> list[int]:
        ratios, total = self._use_ratios()
        waiting = [bool(queue.waiting) for queue in self.queues]
        return bands.order(waiting, starved, ratios, self.rules, total_ratio=total, overloaded=self._floors_batch)

    def _starved(self, now_s: float) -> list[bool]:
        return [bool(queue.waiting) and now_s - queue.last_dispatch_s > STARVED_S for queue in self.queues]

    def _use_ratios(self) -> tuple[list[float], float]:
        gate = self.gate
        ratios = [gate.use_ratio(queue.running, queue.kv_tokens, queue.reading_tokens) for queue in self.queues]
        return ratios, gate.use_ratio(gate.running, gate.kv_tokens, gate.reading_tokens)

    def _unqueue(self, ticket: Ticket, state: int) -> None:
        assert ticket.flow is not None
        ticket.state = state
        self.queues[ticket.band].remove(ticket.flow, ticket)
        self.waiting -= 1
        if not self.waiting:
            self._blocked = None

    def _refusal(
        self, ticket: Ticket, flow: Flow, queue: FairQueue, now_s: float, *, is_expected: bool
    ) -> Refuse | None:
        reason: Reason | None = exceeded_bound(
            ticket, flow, queue, self.queues, max_queued_tokens=self.max_queued_tokens, heaviest=self.heaviest
        )
        if reason is None and not self._is_hopeless(ticket, flow, now_s, is_expected=is_expected):
            return None
        if reason is None:
            self.drain.mark_full(now_s)
        queue.refused += 1
        return Refuse(reason or "saturated", self._assign_return_time(ticket, flow, now_s, is_expected=is_expected))

    def _is_hopeless(self, ticket: Ticket, flow: Flow, now_s: float, *, is_expected: bool) -> bool:
        """Return True if the ticket would probably be dispatched late, or if room is reserved for requests of its
        tenant whose return time has come."""
        if not is_expected and flow.returns.has_due_place(ticket.deadline_s, now_s):
            return True
        expected_s = self.expected_wait_s(ticket.band, flow, ticket.cost)
        tolerance = self.tolerance[ticket.band].ratio
        if self.kept_ratios is not None:
            tolerance *= queue_headroom_ratio(flow.weight, self.heaviest)
        return expected_s > tolerance * (ticket.deadline_s - now_s)

    def _assign_return_time(self, ticket: Ticket, flow: Flow, now_s: float, *, is_expected: bool = False) -> float:
        queue = self.queues[ticket.band]
        own_part = flow.weight / max(queue.active_weight, flow.weight)
        drain_per_s = self._per_s(self.drain.rate_so_far(now_s, self.gate.replicas), ticket.band)
        ahead, own = ticket.cost + queue.queued_cost, ticket.cost + flow.queued_cost
        expected_s = wait_s(ahead, own, flow.weight, queue.active_weight, drain_per_s)
        request = xxh3_64_intdigest(ticket.content)
        if is_expected:
            return flow.returns.postpone_place(request, expected_s, now_s)
        return flow.returns.reserve_place(request, ticket.cost, expected_s, own_part * drain_per_s, now_s)

    def _per_s(self, per_replica: float, band: int) -> float:
        """Return the band's part of the pool's drain rate (cost per second) while the same bands have requests
        waiting."""
        waiting = [bool(queue.waiting) or index == band for index, queue in enumerate(self.queues)]
        part = bands.drain_share_ratio(band, waiting, self.rules, self._floors_batch)
        return per_replica * self.gate.replicas * part

    def _is_full(self) -> bool:
        """Return True if requests wait because the pool is full, not because their tenants hold their parts."""
        gate = self.gate
        full = self._blocked is not None or gate.use_ratio(gate.running, gate.kv_tokens, gate.reading_tokens) >= _FULL
        return full and self.waiting > 0

    def _run_each_second(self, now_s: float) -> None:
        self._second_s = now_s
        self.drain.tick(now_s, self.gate.replicas, self._is_full() and not self._has_passed)
        self._has_passed = not self.waiting
        for queue in self.queues:
            queue.forget_idle_flows(now_s)
        self.heaviest = max((flow.weight for queue in self.queues for flow in queue.flows.values()), default=1.0)
