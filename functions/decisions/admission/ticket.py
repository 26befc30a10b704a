"""A request in the admission queue (`Ticket`), and one tenant's requests in a band (`Flow`).

    new -> waiting -> running -> over
      |_______|__________________^      refused, withdrawn, or too late

What it asks for is fixed; the rest of the fields are `queue`'s alone. One object for both, and a struct, because
one is made per request: two objects, or a frozen dataclass, would cost more than all the rest of the fast path.
"""

from collections import deque
from heapq import heapify, heappop, heappush
from typing import Optional

import msgspec

from functions.api.ids import TenantId
from functions.api.snapshot import ServiceClass
from functions.decisions.admission.drain_rate import ReturnTimes

NEW, WAITING, RUNNING, OVER = range(4)
BANDS: tuple[ServiceClass, ...] = ("interactive", "near-real-time", "batch")  # in the order of their urgency
SLACK = 16  # entries of tickets that left, before looking at the share they make up
OUTPUT_WEIGHT = 2  # a token generated costs a step of the engine, one read is one of thousands in a step


def cost_tokens(uncached_prompt_tokens: int, output_tokens: int) -> int:
    """What a request takes out of a pool, in tokens read: the VTC paper's prices, 1 read and 2 generated."""
    return uncached_prompt_tokens + OUTPUT_WEIGHT * output_tokens


def uncounted_cost_tokens(prompt_tokens: int, delivered_tokens: int, *, at_work: bool, begun: bool) -> int | None:
    """The same of a request that ended before its engine had counted; None: as much as was expected.

        no engine had it, or all that had it failed    0                           that is not its tenant's doing
        it ended in its stream                         prompt + 2 x delivered      however short it was expected to be
        it ended before anything came                  None                        its prompt is being read for it

    `at_work`: an engine has it and has not failed. So whoever leaves early gains nothing by it. Worked example
    (test_what_a_request_costs_its_tenant_in_the_end): 1,000 tokens of prompt, 50 expected, gone after 300: 1,600, not
    the 1,100 that were charged when it went.
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
    kv_tokens: int  # held at the end: prompt and expected output
    cost: int  # expected (`cost_tokens`)
    deadline_s: float  # the last moment at which it makes sense to dispatch it
    arrived_s: float
    streams: bool = True  # its first token is seen
    content: bytes = b""  # what it holds of memory while it waits, and is known by when it comes back

    # how far it has come
    state: int = NEW
    dispatched_s: float = 0.0
    reading_tokens: int = 0  # of the pool's prefill window, while its prompt is read
    flow: Optional["Flow"] = None


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
        if len(self._by_deadline) > 2 * self.queued_requests + SLACK:
            self._by_deadline = [entry for entry in self._by_deadline if entry[3].state == WAITING]
            heapify(self._by_deadline)
        if len(self._by_age) > 2 * self.queued_requests + SLACK:
            self._by_age = deque(each for each in self._by_age if each.state == WAITING)
