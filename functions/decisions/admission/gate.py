"""Capacity of a pool for one gateway: three limits on its running requests there, and how they are learnt.

    KV tokens   90 % of the blocks of the ready replicas, less the use of other gateways
    requests    the learnt slots, less the requests of other gateways
    reading     prompt tokens before their first token (`window`)

A request reserves the KV cache that it will hold at its end (prompt and expected output), so that the engine need not
preempt it. Engines do not announce slots. They are learnt per replica from its own queue, which should stay short:

    waiting > 2 + running / 16                          ->  slots = running + 2
    waiting = 0, and slots are what limits us           ->  slots = slots x 1.25 + 1

Worked example (test_worked_example_of_slots): a heartbeat reports 32 running and 9 waiting: 9 > 4, so the slots are 34.
A heartbeat reports 33 and 0, and we use 0.9 of them or more: the next are 43. (Up to 4 waiting requests are those that
arrived during a step.)

A request runs on one replica, however many choices it has, so it counts for at most the capacity of one replica.
Otherwise the whole pool would be emptied for a request that can never fit.
Worked example (test_worked_example_of_a_request_larger_than_a_replica): 4 replicas of 10,000 tokens, 9,000 of each to
be used: a request that expects 300,000 waits until 9,000 are free, and counts for 9,000.

An unknown value does not limit: without block counts there is no KV limit, without a long queue no slot limit. A pool
always accepts one request. Heartbeats are a second old and our own counts are exact. The part of other gateways is what
the heartbeats report beyond our own count, the least of three observations, since ours changes between heartbeats.
Gateways do not talk to each other. So they do not see each other's requests dispatched since the last heartbeat, nor KV
tokens reserved for future output; each may fill the same free room once within a second
(docs/explanation/admission.md has the figures).

The pool is crowded if an engine has a long queue or a request that may go finds no capacity. While it is not crowded, a
tenant may be lent more than its part, for requests smaller than that part. A long prompt is not lent room: it occupies
a replica for seconds, too long to correct. After crowding, nothing is lent for a while, and for twice as long each time
that crowding returns soon: then the lent room causes it, not the load.
Worked example (test_worked_example_of_lending_after_a_crowd): crowded at 100 s, nothing is lent until 110 s; crowded
again at 115 s, until 135 s; again at 140 s, until 180 s. After five minutes of lending without, it is 10 s again.

Random arrivals come in bursts: a tenant within its part on average is above it half of the time. So it may hold

    part + min(part, 0.1, 2 x sqrt(part x one))        one: share of the pool that the next request uses

That allows twice the standard deviation of as many small requests, and nothing above the part if one request is as
large as the part.
Worked example (test_worked_example_of_bursts): 512 slots for ten tenants, 51 each: one may hold 0.1 + 2 x sqrt(0.1 /
512) = 0.128 of them, 65. A prompt that is an eighth of the pool is more than a part, and gets no such room.
"""

from collections import deque
from collections.abc import Sequence
from math import inf, sqrt
from statistics import fmean

from functions.api.ids import ReplicaId
from functions.decisions.admission.ticket import Flow, Ticket
from functions.decisions.admission.window import ReadingWindow
from functions.decisions.routing.replicas import ReplicaView

KV_FILL_RATIO = 0.9
PART_RATIO = 0.25  # share of each limit that one tenant may use while others are active
EASY_RATIO = 0.5  # share of each limit below which no band's share is at risk, so requests skip the checks
CROWDED_S, CROWDED_MAX_S = 10.0, 320.0  # time after crowding in which no tenant is lent more than its part
_LENT_WELL_S = 300.0
_LOOKS = 3
_BURST, _BURST_MAX_RATIO = 2.0, 0.1  # standard deviations; share of the pool
_QUEUE = 2  # requests that may wait in an engine, so that it never runs empty
_LOOK_S = 1.0
_LIMITED_RATIO = 0.9
_GROWTH = 1.25


class Gate:
    """Capacity of one pool. Limits and counts are of this gateway's running requests."""

    __slots__ = (
        "_crowded_s",
        "_foreign",
        "_hold_s",
        "_looked_s",
        "_reading_was_full",
        "_seen",
        "_slots",
        "easy_kv_tokens",
        "easy_reading_tokens",
        "easy_requests",
        "kv_limit_tokens",
        "kv_tokens",
        "most_kv_tokens",
        "part_kv_tokens",
        "part_reading_tokens",
        "part_requests",
        "reading_limit_tokens",
        "reading_tokens",
        "replicas",
        "request_limit",
        "running",
        "window",
    )

    def __init__(self, now_s: float) -> None:
        self.replicas = 0
        self.running = self.kv_tokens = self.reading_tokens = 0
        self.window = ReadingWindow(now_s)
        self._crowded_s = -inf  # time of the last crowding
        self._hold_s = CROWDED_S
        self._slots: dict[ReplicaId, float] = {}
        self._seen: dict[ReplicaId, ReplicaView] = {}
        self._foreign: deque[tuple[float, float]] = deque(maxlen=_LOOKS)  # requests, KV tokens
        self._looked_s = now_s - _LOOK_S
        self._reading_was_full = False
        self.most_kv_tokens = inf  # upper limit of the tokens that one request counts for
        self._limit(inf, inf, inf)

    def has_capacity(self, ticket: Ticket, reads_less_than_its_part: bool) -> bool:
        if self.running == 0:
            return True
        kv_tokens = min(ticket.kv_tokens, self.most_kv_tokens)
        if self.running >= self.request_limit or self.kv_tokens + kv_tokens > self.kv_limit_tokens:
            return False
        if self.reading_tokens < self.reading_limit_tokens:
            return True
        self._reading_was_full = True
        return reads_less_than_its_part and self.reading_tokens < 2 * self.reading_limit_tokens

    def use_ratio(self, running: int, kv_tokens: int, reading_tokens: float) -> float:
        """Return the share of the pool's limits that this use takes, in the resource where the share is largest:
        requests, KV tokens or tokens being prefilled."""
        return max(
            running / self.request_limit, kv_tokens / self.kv_limit_tokens, reading_tokens / self.reading_limit_tokens
        )

    def note_crowding(self, now_s: float) -> None:
        """Record crowding: a request that may go found no capacity, or an engine has a long queue. If it comes soon
        after lending began, the next lending waits twice as long."""
        lent_s = now_s - self._crowded_s - self._hold_s
        if lent_s > 0.0:
            self._hold_s = min(CROWDED_MAX_S, 2.0 * self._hold_s) if lent_s < _LENT_WELL_S else CROWDED_S
        self._crowded_s = now_s

    def is_lending(self, now_s: float) -> bool:
        """Return True if the last crowding is long enough ago to lend a tenant more than its part."""
        return now_s - self._crowded_s > self._hold_s

    def holds_full_share(self, flow: Flow, ticket: Ticket, part: float, now_s: float) -> bool:
        """Return True if a tenant with this share of the pool holds so much that `ticket` must wait for the tenant's
        other requests."""
        used = self.use_ratio(flow.running, flow.kv_tokens, flow.reading_tokens)
        reading_tokens = min(ticket.prompt_tokens, self.window.per_replica_tokens)
        one = self.use_ratio(1, ticket.kv_tokens, reading_tokens)
        if one >= part:  # large requests run one at a time, even if the window has changed since the previous dispatch
            return used >= part or flow.reading_tokens > 0
        if part < PART_RATIO and self.is_lending(now_s):
            return used >= PART_RATIO
        return used >= with_bursts(part, one)

    def update_capacity(self, ready: Sequence[ReplicaView], slo_s: float, now_s: float) -> None:
        """Update the limits from the last heartbeats of the pool's ready replicas, at most once per _LOOK_S unless
        their number changes. Without ready replicas there is no limit."""
        if (now_s - self._looked_s < _LOOK_S and len(ready) == self.replicas) or not ready:
            self.replicas = len(ready)
            if not ready:
                self._limit(inf, inf, inf)  # nothing to protect; routing reports the error
            return
        self._looked_s = now_s
        self.replicas = len(ready)
        self._learn_slots(ready, now_s)
        capacity_tokens = _total([float(replica.kv_capacity_tokens) or None for replica in ready])
        self._note_foreign(ready, capacity_tokens)
        foreign_requests = min(requests for requests, _ in self._foreign)
        foreign_kv_tokens = min(tokens for _, tokens in self._foreign)
        self.most_kv_tokens = KV_FILL_RATIO * capacity_tokens / len(ready)
        rates = [1000.0 / replica.prefill_ms_per_token for replica in ready if replica.prefill_ms_per_token > 0]
        rate = fmean(rates) if rates else 0.0  # if 0 (unknown), the window uses the rate seen here
        self.window.tick(now_s, len(ready), rate, slo_s, self._reading_was_full)
        self._reading_was_full = False
        has_slots = 2 * len(self._slots) >= len(ready)  # otherwise single replicas are slow, which routing handles
        slots = _total([self._slots.get(replica.id) for replica in ready]) if has_slots else inf
        self._limit(
            max(1.0, slots - foreign_requests),
            max(1.0, KV_FILL_RATIO * capacity_tokens - foreign_kv_tokens),
            self.window.per_replica_tokens * len(ready),
        )

    def _limit(self, requests: float, kv_tokens: float, reading_tokens: float) -> None:
        self.request_limit, self.kv_limit_tokens, self.reading_limit_tokens = requests, kv_tokens, reading_tokens
        self.easy_requests = EASY_RATIO * requests
        self.easy_kv_tokens = EASY_RATIO * kv_tokens
        self.easy_reading_tokens = EASY_RATIO * reading_tokens
        self.part_requests = PART_RATIO * requests
        self.part_kv_tokens = PART_RATIO * kv_tokens
        self.part_reading_tokens = PART_RATIO * reading_tokens

    def _learn_slots(self, ready: Sequence[ReplicaView], now_s: float) -> None:
        limited = self.running >= _LIMITED_RATIO * self.request_limit
        slots = {}
        for replica in ready:
            known = self._slots.get(replica.id)
            is_update = self._seen.get(replica.id) is not replica
            learnt = learnt_slots(known, replica.running, replica.waiting, limited) if is_update else known
            if has_long_queue(replica.running, replica.waiting):
                self.note_crowding(now_s)
            if learnt is not None:
                slots[replica.id] = learnt
        self._slots = slots
        self._seen = {replica.id: replica for replica in ready}

    def _note_foreign(self, ready: Sequence[ReplicaView], capacity_tokens: float) -> None:
        """Record how many requests and KV tokens the replicas have in this observation beyond this gateway's own."""
        requests = sum(replica.running + replica.waiting for replica in ready) - self.running
        if capacity_tokens == inf:
            self._foreign.append((max(0.0, requests), 0.0))
            return
        held = sum(replica.kv_usage_ratio for replica in ready) / len(ready) * capacity_tokens
        self._foreign.append((max(0.0, requests), max(0.0, held - self.kv_tokens)))


def with_bursts(part: float, one: float) -> float:
    """Return the share of the pool that a tenant may hold: its part and a burst allowance, given the share `one` of its
    next request."""
    return part if one >= part else part + min(part, _BURST_MAX_RATIO, _BURST * sqrt(part * one))


def has_long_queue(running: int, waiting: int) -> bool:
    """Return True if more requests wait in an engine than arrive during one step."""
    return waiting > _QUEUE + running // 16


def learnt_slots(known: float | None, running: int, waiting: int, limited: bool) -> float | None:
    """Return how many requests a replica runs without a long queue, after one more heartbeat; None while nothing has
    limited it."""
    if has_long_queue(running, waiting):
        return float(running + _QUEUE)
    if known is None or not limited or waiting:
        return known
    return known * _GROWTH + 1.0


def _total(each: Sequence[float | None]) -> float:
    """Return the sum of the values. Unknown ones (None) count as the mean of the known ones; without any the sum is
    infinite."""
    known = [value for value in each if value is not None]
    return fmean(known) * len(each) if known else inf
