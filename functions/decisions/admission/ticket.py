"""A request in the admission queue (`Ticket`), and one tenant's requests in a band (`Flow`).

    new -> waiting -> running -> over
      |_______|__________________^      rejected, withdrawn, or too late

The description of the request is fixed. The rest of the fields belong to `queue`. Both are in one struct, because one
is made per request: two objects, or a frozen dataclass, would cost more than the rest of the fast path.
"""

from collections import deque
from heapq import heapify, heappop, heappush
from typing import Optional

import msgspec

from functions.api.ids import TenantId
from functions.api.snapshot import ServiceClass
from functions.decisions.admission.drain_rate import ReturnTimes

NEW, WAITING, RUNNING, OVER = range(4)
BANDS: tuple[ServiceClass, ...] = ("interactive", "near-real-time", "batch")  # most urgent first
SLACK = 16  # stale entries that are tolerated before their share counts
OUTPUT_WEIGHT = 2  # a generated token costs an engine step; a prompt token is one of thousands in a step


def cost_tokens(uncached_prompt_tokens: int, output_tokens: int) -> int:
    """Return the cost of a request in prompt tokens: 1 per token read, 2 per token generated (prices of VTC)."""
    return uncached_prompt_tokens + OUTPUT_WEIGHT * output_tokens


def uncounted_cost_tokens(prompt_tokens: int, delivered_tokens: int, *, at_work: bool, begun: bool) -> int | None:
    """Return the cost of a request that ended without its engine's usage; None means the expected cost.

        no engine has it, or all that had it failed    0                           not caused by the tenant
        its stream was cut                             prompt + 2 x delivered      even if less was expected
        it ended before the first token                None                        its prompt is being read

    `at_work`: an engine has it and has not failed. A client that leaves early gains nothing. Worked example
    (test_final_cost_of_a_request): 1,000 tokens of prompt, 50 expected, cut after 300: 1,600, not
    the 1,100 that were charged at dispatch.
    """
    if begun:
        return cost_tokens(prompt_tokens, delivered_tokens)
    return None if at_work else 0


class Ticket(msgspec.Struct, eq=False):  # a ticket equals itself alone
    number: int  # in the order of arrival: breaks ties
    tenant: TenantId
    weight: float
    band: int  # index into BANDS
    prompt_tokens: int
    kv_tokens: int  # reserved: prompt and expected output
    cost: int  # expected (`cost_tokens`)
    deadline_s: float  # latest time for its dispatch
    arrived_s: float
    streams: bool = True  # the gateway sees its first token
    content: bytes = b""  # its body, held while it waits; a rejected request is recognised by it when it returns

    # progress
    state: int = NEW
    dispatched_s: float = 0.0
    reading_tokens: int = 0  # its use of the pool's prefill window while its prompt is read
    flow: Optional["Flow"] = None


class Flow:
    """One tenant's requests in one band: waiting, running, and the service received."""

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
        self.running = self.kv_tokens = self.reading_tokens = 0  # totals of dispatched requests
        self.stamp = 0  # version of its entry in the queue's heap; entries with an older stamp are ignored
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
        """Return the next ticket, by deadline or the newest, without removing it. The flow must have one waiting."""
        if newest_first:
            while self._by_age[-1].state != WAITING:
                self._by_age.pop()
            return self._by_age[-1]
        while self._by_deadline[0][3].state != WAITING:
            heappop(self._by_deadline)
        return self._by_deadline[0][3]

    def oldest(self) -> Ticket:
        """Return the ticket that has waited longest, without removing it. The flow must have one waiting."""
        while self._by_age[0].state != WAITING:
            self._by_age.popleft()
        return self._by_age[0]

    def earliest(self) -> Ticket:
        return self.head(newest_first=False)

    def remove(self, ticket: Ticket) -> None:
        """Take a ticket that no longer waits out of the flow's sums. Its state must have changed before; it leaves the
        lists later."""
        self.queued_requests -= 1
        self.queued_kv_tokens -= ticket.kv_tokens
        self.queued_cost -= ticket.cost
        self.queued_bytes -= len(ticket.content)
        if len(self._by_deadline) > 2 * self.queued_requests + SLACK:
            self._by_deadline = [entry for entry in self._by_deadline if entry[3].state == WAITING]
            heapify(self._by_deadline)
        if len(self._by_age) > 2 * self.queued_requests + SLACK:
            self._by_age = deque(each for each in self._by_age if each.state == WAITING)
