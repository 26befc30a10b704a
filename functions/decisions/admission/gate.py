"""Capacity of a pool for one gateway: three limits on what it has running there, and how they are learnt.

    KV tokens   90 % of the blocks of the ready replicas, less what others hold
    requests    the slots that were learnt, less what others have there
    reading     prompt tokens before their first token (`window`)

A request reserves what it will hold at its end (prompt and expected output), so that it need not be preempted. Slots
are not announced by engines; they are learnt per replica from its own queue, which is to stay short:

    waiting > 2 + running / 16                          ->  slots = running + 2
    waiting = 0, and slots are what limits us           ->  slots = slots x 1.25 + 1

Worked example (test_worked_example_of_slots): a heartbeat says 32 running and 9 waiting: 9 > 4, so the slots are 34. A
heartbeat says 33 and 0, and we use 0.9 of them or more: the next are 43. (Up to 4 that wait are those that came during
a step.)

A request is in one replica, however many choices it asks for: it counts for at most what one replica holds. Otherwise
one that could never fit would have the whole pool emptied for it.
Worked example (test_worked_example_of_a_request_larger_than_a_replica): 4 replicas of 10,000 tokens, 9,000 of each to
be used: one that expects 300,000 waits until 9,000 are free, and counts for 9,000.

What is not known does not limit: without block counts the KV limit is open, without a long queue the slots are. A pool
always takes one request. Heartbeats are a second old, our own counts are exact: other gateways' part is what the
heartbeats say beyond our own, the least of three looks, since ours rises and falls between heartbeats. So several
gateways, which do not talk, overlook of each other's requests what was dispatched since the last heartbeat, and of
their KV tokens what is reserved for output still to come; each may fill the same free room once within a second
(docs/explanation/admission.md has the figures).

While nobody is crowded (no engine has a long queue, and whoever has little finds room), a tenant may be lent more than
its part, in requests that are smaller than that: a long prompt keeps a replica for seconds, and that the others miss it
shows only when it is too late. Once somebody was crowded, nothing is lent for a while, and for twice as long each time
that it comes back soon: what was lent, not the load, is then what crowds.
Worked example (test_worked_example_of_lending_after_a_crowd): crowded at 100 s, nothing is lent until 110 s; crowded
again at 115 s, until 135 s; again at 140 s, until 180 s. After five minutes of lending without, it is 10 s again.

Who comes by chance, comes in bursts: a tenant within its part on average is above it half of the time. So it may hold

    part + min(part, 0.1, 2 x sqrt(part x one))        one: what part of the pool the next request is

twice the deviation of as many small requests, and no more than its part where one request is as large as that.
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
PART_RATIO = 0.25  # of each limit, for one tenant while others are active
EASY_RATIO = 0.5  # of each limit: below, no band's share can be touched, and nobody need look
CROWDED_S, CROWDED_MAX_S = 10.0, 320.0  # for so long after somebody was crowded, nobody is lent more than his part
_LENT_WELL_S = 300.0
_LOOKS = 3
_BURST, _BURST_MAX_RATIO = 2.0, 0.1  # deviations; of the pool
_QUEUE = 2  # requests that may wait in an engine, so that it has the next one at hand
_LOOK_S = 1.0
_LIMITED_RATIO = 0.9
_GROWTH = 1.25


class Gate:
    """Of one pool. The limits are for what this gateway has running."""

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
        self._crowded_s = -inf  # when an engine last had a long queue, or somebody who has little found no room
        self._hold_s = CROWDED_S
        self._slots: dict[ReplicaId, float] = {}
        self._seen: dict[ReplicaId, ReplicaView] = {}
        self._foreign: deque[tuple[float, float]] = deque(maxlen=_LOOKS)  # requests, KV tokens
        self._looked_s = now_s - _LOOK_S
        self._reading_was_full = False
        self.most_kv_tokens = inf  # that one request counts for
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
        """What part of the pool this is, in the resource of which it is most."""
        return max(
            running / self.request_limit, kv_tokens / self.kv_limit_tokens, reading_tokens / self.reading_limit_tokens
        )

    def crowd(self, now_s: float) -> None:
        """Somebody who has little found no room, or an engine has a long queue."""
        lent_s = now_s - self._crowded_s - self._hold_s
        if lent_s > 0.0:
            self._hold_s = min(CROWDED_MAX_S, 2.0 * self._hold_s) if lent_s < _LENT_WELL_S else CROWDED_S
        self._crowded_s = now_s

    def lends(self, now_s: float) -> bool:
        """Whether a tenant may have more than its part, as far as the time tells."""
        return now_s - self._crowded_s > self._hold_s

    def has_its_part(self, flow: Flow, ticket: Ticket, part: float, now_s: float) -> bool:
        """Whether a tenant whose weight gives it `part` holds so much that its next request has to wait for another."""
        used = self.use_ratio(flow.running, flow.kv_tokens, flow.reading_tokens)
        reading_tokens = min(ticket.prompt_tokens, self.window.per_replica_tokens)
        one = self.use_ratio(1, ticket.kv_tokens, reading_tokens)
        if one >= part:  # one after the other, whatever the window has become since the former went
            return used >= part or flow.reading_tokens > 0
        if part < PART_RATIO and self.lends(now_s):
            return used >= PART_RATIO
        return used >= with_bursts(part, one)

    def look(self, ready: Sequence[ReplicaView], slo_s: float, now_s: float) -> None:
        """Take in what the pool's ready replicas last said; a few times a second."""
        if (now_s - self._looked_s < _LOOK_S and len(ready) == self.replicas) or not ready:
            self.replicas = len(ready)
            if not ready:
                self._limit(inf, inf, inf)  # nothing to protect; routing says what is wrong
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
        rate = fmean(rates) if rates else 0.0  # no replica says: the window goes by what passed
        self.window.tick(now_s, len(ready), rate, slo_s, self._reading_was_full)
        self._reading_was_full = False
        has_slots = 2 * len(self._slots) >= len(ready)  # else it is one replica's own trouble, and routing's affair
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
                self.crowd(now_s)
            if learnt is not None:
                slots[replica.id] = learnt
        self._slots = slots
        self._seen = {replica.id: replica for replica in ready}

    def _note_foreign(self, ready: Sequence[ReplicaView], capacity_tokens: float) -> None:
        """What others have there, as far as this one look tells."""
        requests = sum(replica.running + replica.waiting for replica in ready) - self.running
        if capacity_tokens == inf:
            self._foreign.append((max(0.0, requests), 0.0))
            return
        held = sum(replica.kv_usage_ratio for replica in ready) / len(ready) * capacity_tokens
        self._foreign.append((max(0.0, requests), max(0.0, held - self.kv_tokens)))


def with_bursts(part: float, one: float) -> float:
    """What a tenant may hold at a moment, for a part of so much and requests of so much each."""
    return part if one >= part else part + min(part, _BURST_MAX_RATIO, _BURST * sqrt(part * one))


def has_long_queue(running: int, waiting: int) -> bool:
    """Whether more wait in an engine than came during its last step."""
    return waiting > _QUEUE + running // 16


def learnt_slots(known: float | None, running: int, waiting: int, limited: bool) -> float | None:
    """A replica's slots after one more heartbeat; None while nothing has limited it."""
    if has_long_queue(running, waiting):
        return float(running + _QUEUE)
    if known is None or not limited or waiting:
        return known
    return known * _GROWTH + 1.0


def _total(each: Sequence[float | None]) -> float:
    """The sum; who has not said yet counts as the others do, and without any it is open."""
    known = [value for value in each if value is not None]
    return fmean(known) * len(each) if known else inf
