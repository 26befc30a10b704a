"""Admission queues of a gateway, one per pool, in which requests wait for capacity.

    submit -> dispatched() at once or later, or turned_away(answer, reason)
           -> first_token() with the first token; ended() at the end, or released() when the request moves to another
              pool: a waiting request is withdrawn, and the slot of a dispatched one becomes free

`functions.decisions.admission.queue` decides. This module makes tickets for exchanges, asks for a new decision
whenever capacity may be available, and counts for `metrics`. A request is never dispatched from inside another
request's end but by the event loop afterwards. An exception in one then cannot affect the other, and a thousand
rejections do not recurse.

Requests that compute nothing (tokenize) bypass the queue. Retries do too: a request keeps its slot until it ends.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol, cast

from functions.api.ids import PoolName, TenantId
from functions.decisions.admission.drain_rate import retry_after_s
from functions.decisions.admission.queue import Admission, Refuse
from functions.decisions.admission.ticket import BANDS, OVER, WAITING, Ticket, cost_tokens
from functions.decisions.catalogue import Catalogue
from functions.decisions.catalogue_policies import DEFAULT_ADMISSION
from functions.decisions.overload.gateway_share import QueueLadder, shiftable_ratio
from functions.decisions.overload.ladder import Rungs
from functions.decisions.routing.fallback import shift_targets
from functions.fleet.view import FleetView
from functions.gateway import errors
from functions.gateway.admission.metrics import WaitTimes
from functions.gateway.admission.pool_stats import PoolActivity
from functions.gateway.errors import ErrorAnswer
from functions.gateway.intake.routes import COUNT_TOKENS, DETOKENIZE, TOKENIZE
from functions.gateway.request.answers import Usage
from functions.gateway.request.request import Admitted, Ended, Timeline

_BAND_OF = {name: index for index, name in enumerate(BANDS)}
_FREE = frozenset(route.path for route in (TOKENIZE, DETOKENIZE, COUNT_TOKENS))  # these need no step of the engine
_IDLE_S = 600.0  # a queue without requests for this long is removed


class PoolTicket(Ticket, eq=False, kw_only=True):
    """Ticket of a request, with references to the request and its queue. The request drops its ticket at its end."""

    pool_queue: "_PoolQueue"
    request: "QueuedRequest | None"


class QueuedRequest(Protocol):
    """The part of an exchange that the queues use."""

    admitted: Admitted
    catalogue: Catalogue
    timeline: Timeline
    usage: Usage | None
    ticket: PoolTicket | None  # set from submission until the request leaves the pool

    def dispatched(self) -> None:
        """Route the request to a replica: the queue calls this when there is capacity for it."""

    def turned_away(self, answer: ErrorAnswer, reason: str) -> None:
        """Handle the rejection: there is no capacity in time. `reason` is a label of shoal_shed_total."""


class _PoolQueue:
    """Admission queue of one pool."""

    __slots__ = ("_weights", "admission", "catalogue", "ladder", "last_s", "serving", "waits")

    def __init__(self, catalogue: Catalogue, pool: PoolName, now_s: float, ladder: QueueLadder) -> None:
        self.admission = Admission(DEFAULT_ADMISSION, now_s)
        self.ladder = ladder
        self.waits = WaitTimes()
        self.last_s = now_s
        self.serving = False  # `_serve` is scheduled on the event loop
        self.apply_policy(catalogue, pool)

    def apply_policy(self, catalogue: Catalogue, pool: PoolName) -> None:
        """Apply another snapshot's admission policy and tenant weights from now on."""
        self.catalogue = catalogue
        self._weights: dict[TenantId, float] = {}
        self.admission.apply_policy(catalogue.admission_for(pool))

    def weight(self, tenant: TenantId) -> float:
        found = self._weights.get(tenant)
        if found is None:
            quota = self.catalogue.quota_of(tenant)
            found = self._weights[tenant] = quota.weight if quota is not None else 1.0
        return found


class AdmissionQueues:
    """Admission queues of all pools. Owned by one event loop; times are monotonic seconds."""

    def __init__(
        self, clock: Callable[[], float], fleet: FleetView, new_ladder: Callable[[], QueueLadder] = QueueLadder
    ) -> None:
        self._clock = clock
        self._new_ladder = new_ladder
        self._fleet = fleet
        self._pool_queues: dict[PoolName, _PoolQueue] = {}
        self._count = 0
        self.pools = PoolActivity(clock)

    def submit(self, exchange: QueuedRequest) -> None:
        """Dispatch the request now, enqueue it until there is capacity, or reject it.

        Free routes without output are always dispatched, without a ticket.
        """
        admitted = exchange.admitted
        if admitted.route.output is None and admitted.route.path in _FREE:
            exchange.dispatched()
            return
        now_s = self._clock()
        pool_queue = self._pool_queues.get(admitted.model.pool)
        if pool_queue is None or pool_queue.catalogue is not exchange.catalogue:
            pool_queue = self._pool_queue(exchange, now_s)
        ticket = self._ticket(exchange, pool_queue, now_s)
        self.pools.arrived(admitted.model.pool, ticket.kv_tokens, deferrable=admitted.service_class == "batch")
        verdict = pool_queue.admission.arrive(ticket, now_s)
        if verdict == "dispatch":
            exchange.ticket = ticket
            pool_queue.waits.passed[ticket.band] += 1
            exchange.dispatched()
        elif verdict == "wait":
            exchange.ticket = ticket
        else:
            self._turn_away(exchange, verdict)

    def first_token(self, exchange: QueuedRequest) -> None:
        """Record that a request got its first token, and dispatch waiting requests soon if there are any."""
        ticket = exchange.ticket
        if ticket is not None:
            pool_queue = ticket.pool_queue
            pool_queue.admission.first_token(ticket, self._clock() - ticket.dispatched_s)
            if pool_queue.admission.waiting:
                self._serve_soon(pool_queue)

    def defer(self, exchange: QueuedRequest) -> None:
        """Release the request's prefill capacity while it waits for its adapter or a prefill; its slot stays taken."""
        ticket = exchange.ticket
        if ticket is not None:
            pool_queue = ticket.pool_queue
            pool_queue.admission.release_prefill_tokens(ticket)
            if pool_queue.admission.waiting:
                self._serve_soon(pool_queue)

    def ended(self, ended: Ended) -> None:
        """Release the ticket of a request that has ended, if it has one, and count the end in its pool."""
        if ended.ticket is not None:
            self._release(cast(PoolTicket, ended.ticket), ended.usage, ended.cost_tokens)
        self.pools.ended(ended)

    def leave_pool(self, exchange: QueuedRequest, cost: int | None) -> None:
        """Release the ticket of a request that leaves this pool. `cost` is in `cost_tokens`; None is the expected
        cost."""
        ticket, exchange.ticket = exchange.ticket, None
        if ticket is not None:
            self._release(ticket, exchange.usage, cost)

    def _release(self, ticket: PoolTicket, usage: Usage | None, cost: int | None) -> None:
        """Withdraw a waiting ticket, or free a dispatched one's slot; waiting requests are then dispatched soon."""
        pool_queue = ticket.pool_queue
        ticket.request = None  # the queue may hold a withdrawn ticket for a while, but must not hold its body
        if ticket.state == WAITING:
            pool_queue.admission.withdraw(ticket)
            self._serve_soon(pool_queue)
            return
        pool_queue.admission.record_end(ticket, cost)
        if pool_queue.admission.waiting:
            self._serve_soon(pool_queue)

    def sweep(self, now_s: float) -> None:
        """Update every queue's capacity and overload ladder, reject requests that waited too long and dispatch others.

        Queues that have been idle for long are deleted. Called a few times a second.
        """
        for pool, pool_queue in list(self._pool_queues.items()):
            ready = [replica for replica in self._fleet.pool(pool).replicas if replica.phase == "ready"]
            pool_queue.admission.update_capacity(ready, now_s)
            pool_queue.ladder.update_rungs(
                pool_queue.admission, now_s, shiftable_ratio=self._shiftable_ratio(pool, pool_queue)
            )
            for ticket in list(pool_queue.admission.expire_late(now_s)):
                self._too_late(pool_queue, ticket, now_s)
            self._serve(pool_queue)
            if (
                now_s - pool_queue.last_s > _IDLE_S
                and not pool_queue.admission.waiting
                and not pool_queue.admission.gate.running
            ):
                del self._pool_queues[pool]

    # overload ladder

    def shift_ratio(self, pool: PoolName) -> float:
        """Return the share of the pool's requests that its overload ladder currently sends to other pools."""
        pool_queue = self._pool_queues.get(pool)
        return pool_queue.ladder.shift_ratio(pool_queue.admission) if pool_queue is not None else 0.0

    def count_shifted(self, admitted: Admitted) -> None:
        """Count a request as offered to its own pool although another pool receives it."""
        self._offered(admitted, 1)

    def count_returned(self, admitted: Admitted) -> None:
        """Undo the count of `count_shifted`, because the request is now submitted to its own pool."""
        self._offered(admitted, -1)

    def _offered(self, admitted: Admitted, requests: int) -> None:
        pool_queue, features = self._pool_queues.get(admitted.model.pool), admitted.features
        if pool_queue is not None:
            prompt_tokens, expected_tokens = features.prompt_tokens, features.expected_output_tokens
            queue = pool_queue.admission.queues[_BAND_OF[admitted.service_class]]
            queue.arrived += requests
            queue.arrived_cost += requests * cost_tokens(prompt_tokens, expected_tokens)
            tokens, is_batch = requests * (prompt_tokens + expected_tokens), admitted.service_class == "batch"
            self.pools.arrived(admitted.model.pool, tokens, deferrable=is_batch, requests=requests)

    def is_overloaded(self, pool: PoolName) -> bool:
        """Return True if any step of the pool's overload ladder is active; False for a pool without recent requests."""
        pool_queue = self._pool_queues.get(pool)
        return pool_queue is not None and bool(pool_queue.ladder.rungs.on)

    def ladders(self) -> dict[PoolName, Rungs]:
        """Return the ladder's steps, active or not, of each recently requested pool."""
        return {pool: pool_queue.ladder.rungs for pool, pool_queue in list(self._pool_queues.items())}

    def _shiftable_ratio(self, pool: PoolName, pool_queue: _PoolQueue) -> float:
        """Return the share of the pool's requests that ready fallback pools and other pools of its model could take."""
        catalogue = pool_queue.catalogue
        adjacent = catalogue.takeover_pools(pool)
        steps = catalogue.routing_for(pool).fallback
        targets = [target for target in adjacent if self._fleet.index(target).ready]
        targets += shift_targets(steps, pool, lambda target: bool(self._fleet.index(target).ready))
        pool_queues = [self._pool_queues.get(target) for target in targets]
        return shiftable_ratio([target.admission.used_ratio if target is not None else 0.0 for target in pool_queues])

    @property
    def waiting(self) -> int:
        return sum(pool_queue.admission.waiting for pool_queue in self._pool_queues.values())

    def figures(self) -> list[tuple[PoolName, Admission, WaitTimes]]:
        """Return name, admission state and wait times of each recently requested pool, for the metrics."""
        return [(pool, pool_queue.admission, pool_queue.waits) for pool, pool_queue in list(self._pool_queues.items())]

    def _pool_queue(self, exchange: QueuedRequest, now_s: float) -> _PoolQueue:
        pool, catalogue = exchange.admitted.model.pool, exchange.catalogue
        pool_queue = self._pool_queues.get(pool)
        if pool_queue is None:
            pool_queue = self._pool_queues[pool] = _PoolQueue(catalogue, pool, now_s, self._new_ladder())
            ready = [replica for replica in self._fleet.pool(pool).replicas if replica.phase == "ready"]
            pool_queue.admission.update_capacity(ready, now_s)
        elif catalogue.epoch >= pool_queue.catalogue.epoch:  # not an older snapshot, which a request may still use
            pool_queue.apply_policy(catalogue, pool)
        return pool_queue

    def _ticket(self, exchange: QueuedRequest, pool_queue: _PoolQueue, now_s: float) -> PoolTicket:
        admitted = exchange.admitted
        features = admitted.features
        band = _BAND_OF[admitted.service_class]
        deadline_s = now_s + pool_queue.admission.rules[band].max_wait_s
        if admitted.deadline_ms is not None:
            deadline_s = min(deadline_s, exchange.timeline.received_s + admitted.deadline_ms / 1000)
        self._count += 1
        pool_queue.last_s = now_s
        tenant, prompt_tokens, expected_tokens = (
            admitted.caller.tenant,
            features.prompt_tokens,
            features.expected_output_tokens,
        )
        return PoolTicket(
            self._count,
            tenant,
            pool_queue.weight(tenant),
            band,
            prompt_tokens,
            prompt_tokens + expected_tokens,
            cost_tokens(prompt_tokens, expected_tokens),
            deadline_s,
            now_s,
            admitted.stream,
            admitted.upstream_body,
            pool_queue=pool_queue,
            request=exchange,
        )

    def _serve_soon(self, pool_queue: _PoolQueue) -> None:
        if not pool_queue.serving:
            pool_queue.serving = True
            asyncio.get_running_loop().call_soon(self._serve, pool_queue)

    def _serve(self, pool_queue: _PoolQueue) -> None:
        """Dispatch the waiting requests for which there is capacity now, and reject those that are too late."""
        pool_queue.serving = False
        now_s = self._clock()
        while (ticket := pool_queue.admission.next(now_s)) is not None:
            if ticket.state == OVER:
                self._too_late(pool_queue, ticket, now_s)
                continue
            exchange = _request_of(ticket)
            waited_s = now_s - ticket.arrived_s
            exchange.timeline.queued_s += waited_s
            pool_queue.waits.waited(ticket.band, waited_s)
            exchange.dispatched()

    def _too_late(self, pool_queue: _PoolQueue, ticket: Ticket, now_s: float) -> None:
        exchange = _request_of(ticket)
        exchange.ticket = cast(PoolTicket, ticket).request = None
        waited_s = now_s - ticket.arrived_s
        exchange.timeline.queued_s += waited_s
        pool_queue.waits.waited(ticket.band, waited_s)
        self._turn_away(exchange, pool_queue.admission.refuse_late(ticket, now_s))

    def _turn_away(self, exchange: QueuedRequest, refuse: Refuse) -> None:
        exchange.turned_away(_refusal(refuse, exchange.admitted), refuse.reason)


def _request_of(ticket: Ticket) -> QueuedRequest:
    return cast(QueuedRequest, cast(PoolTicket, ticket).request)


_MESSAGES = {
    "saturated": "The pool {pool} is full, and a new request would wait too long.",
    "queue_full": "The queue of the pool {pool} is full.",
    "tenant_queue_full": "Your share of the queue of the pool {pool} is full.",
    "low_tier": "The pool {pool} is nearly full, and higher tiers go first.",
    "low_band": "The pool {pool} is overloaded, and more urgent classes go first.",
    "queue_timeout": "The pool {pool} is full, and the request has waited for the longest time allowed.",
}


def _refusal(refuse: Refuse, admitted: Admitted) -> ErrorAnswer:
    after_s = retry_after_s(refuse.after_s, admitted.request_id)
    why = _MESSAGES[refuse.reason].format(pool=admitted.model.pool)
    return errors.unavailable(f"{why} Try again in {after_s} s.", "overloaded", after_s)
