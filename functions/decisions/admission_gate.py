"""What a pool can take: three limits, of what this gateway has running there, and how they are learnt.

    KV tokens   90 % of the blocks of the ready replicas, less what others hold
    requests    the seats that were learnt, less what others have there
    reading     prompt tokens before their first token (`admission_window`)

A request reserves what it will hold at its end (prompt and expected output), so that it need not be preempted. Seats
are not announced by engines; they are learnt per replica from its own queue, which is to stay short:

    waiting > 2 + running / 16                          ->  seats = running + 2
    waiting = 0, and seats are what limits us           ->  seats = seats x 1.25 + 1

Worked example (test_worked_example_of_seats): a beat says 32 running and 9 waiting: 9 > 4, so the seats are 34. A beat
says 33 and 0, and we use 0.9 of them or more: the next are 43. (Up to 4 that wait are those that came during a step.)

What is not known does not limit: without block counts the KV limit is open, without a long queue the seats are. A pool
always takes one request. Beats are a second old, our own counts are exact: other gateways' part is what the beats say
beyond our own, the least of three looks, since ours rises and falls between beats. So several gateways, which do not
talk, overlook of each other's requests what was dispatched since the last beat, and of their KV tokens what is reserved
for output still to come; each may fill the same free room once within a second. (docs/admission.md has the figures.)
"""

from collections import deque
from collections.abc import Sequence
from math import inf
from statistics import fmean

from functions.api.ids import ReplicaId
from functions.decisions.admission_ticket import Ticket
from functions.decisions.admission_window import ReadingWindow
from functions.decisions.replicas import ReplicaView

KV_FILL_RATIO = 0.9
PART_RATIO = 0.25  # of each limit, for one tenant while others are active
EASY_RATIO = 0.5  # of each limit: below, no band's share can be touched, and nobody need look
_LOOKS = 3
_QUEUE = 2  # requests that may wait in an engine, so that it has the next one at hand
_LOOK_S = 1.0
_LIMITED_RATIO = 0.9
_GROWTH = 1.25


class Gate:
    """Of one pool. The limits are for what this gateway has running."""

    __slots__ = (
        "_foreign",
        "_looked_s",
        "_reading_was_full",
        "_seats",
        "_seen",
        "crowded_s",
        "easy_kv_tokens",
        "easy_reading_tokens",
        "easy_requests",
        "kv_limit_tokens",
        "kv_tokens",
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
        self.crowded_s = -inf  # when an engine last had a long queue, or somebody who has little found no room
        self._seats: dict[ReplicaId, float] = {}
        self._seen: dict[ReplicaId, ReplicaView] = {}
        self._foreign: deque[tuple[float, float]] = deque(maxlen=_LOOKS)  # requests, KV tokens
        self._looked_s = now_s - _LOOK_S
        self._reading_was_full = False
        self._limit(inf, inf, inf)

    def has_room(self, ticket: Ticket, reads_less_than_its_part: bool) -> bool:
        if self.running == 0:
            return True
        if self.running >= self.request_limit or self.kv_tokens + ticket.kv_tokens > self.kv_limit_tokens:
            return False
        if self.reading_tokens < self.reading_limit_tokens:
            return True
        self._reading_was_full = True
        return reads_less_than_its_part and self.reading_tokens < 2 * self.reading_limit_tokens

    def use_ratio(self, running: int, kv_tokens: int, reading_tokens: int) -> float:
        """What part of the pool this is, in the resource of which it is most."""
        return max(
            running / self.request_limit, kv_tokens / self.kv_limit_tokens, reading_tokens / self.reading_limit_tokens
        )

    def look(self, ready: Sequence[ReplicaView], slo_s: float, now_s: float) -> None:
        """Take in what the pool's ready replicas last said; a few times a second."""
        if (now_s - self._looked_s < _LOOK_S and len(ready) == self.replicas) or not ready:
            self.replicas = len(ready)
            if not ready:
                self._limit(inf, inf, inf)  # nothing to protect; routing says what is wrong
            return
        self._looked_s = now_s
        self.replicas = len(ready)
        self._learn_seats(ready, now_s)
        capacity_tokens = _total([float(replica.kv_capacity_tokens) or None for replica in ready])
        self._note_foreign(ready, capacity_tokens)
        foreign_requests = min(requests for requests, _ in self._foreign)
        foreign_kv_tokens = min(tokens for _, tokens in self._foreign)
        rate = fmean(1000.0 / replica.prefill_ms_per_token for replica in ready if replica.prefill_ms_per_token > 0)
        self.window.tick(now_s, len(ready), rate, slo_s, self._reading_was_full)
        self._reading_was_full = False
        has_seats = 2 * len(self._seats) >= len(ready)  # else it is one replica's own trouble, and routing's affair
        seats = _total([self._seats.get(replica.id) for replica in ready]) if has_seats else inf
        self._limit(
            max(1.0, seats - foreign_requests),
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

    def _learn_seats(self, ready: Sequence[ReplicaView], now_s: float) -> None:
        limited = self.running >= _LIMITED_RATIO * self.request_limit
        seats = {}
        for replica in ready:
            known = self._seats.get(replica.id)
            is_news = self._seen.get(replica.id) is not replica
            learnt = learnt_seats(known, replica.running, replica.waiting, limited) if is_news else known
            if has_long_queue(replica.running, replica.waiting):
                self.crowded_s = now_s
            if learnt is not None:
                seats[replica.id] = learnt
        self._seats = seats
        self._seen = {replica.id: replica for replica in ready}

    def _note_foreign(self, ready: Sequence[ReplicaView], capacity_tokens: float) -> None:
        """What others have there, as far as this one look tells."""
        requests = sum(replica.running + replica.waiting for replica in ready) - self.running
        if capacity_tokens == inf:
            self._foreign.append((max(0.0, requests), 0.0))
            return
        held = sum(replica.kv_usage_ratio for replica in ready) / len(ready) * capacity_tokens
        self._foreign.append((max(0.0, requests), max(0.0, held - self.kv_tokens)))


def has_long_queue(running: int, waiting: int) -> bool:
    """Whether more wait in an engine than came during its last step."""
    return waiting > _QUEUE + running // 16


def learnt_seats(known: float | None, running: int, waiting: int, limited: bool) -> float | None:
    """A replica's seats after one more beat; None while nothing has limited it."""
    if has_long_queue(running, waiting):
        return float(running + _QUEUE)
    if known is None or not limited or waiting:
        return known
    return known * _GROWTH + 1.0


def _total(each: Sequence[float | None]) -> float:
    """The sum; who has not said yet counts as the others do, and without any it is open."""
    known = [value for value in each if value is not None]
    return fmean(known) * len(each) if known else inf
