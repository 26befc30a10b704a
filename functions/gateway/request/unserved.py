"""Handle a request that no replica can serve as it is: wait, change the request, or reject it.

    no replica has its adapter      the rollout's old version if that is allowed, else load the adapter (`cold`)
    all that have its base are out  the rollout's old version if that is allowed
    its pool is full or gone        another pool (`plan`); if its own pool is at zero, wait until that serves (`wake`);
                                    else reject with the error of the requested pool

`exchange` is the request. `retries` calls this module when a pool has failed. `routing.cold_wait`,
`routing.wake_wait` and `routing.fallback_plan` implement the waits and choose other pools.
"""

from functools import partial
from typing import Protocol

from functions.api.snapshot import FallbackWhen
from functions.decisions.routing.choice import NoReplica, Prediction, ReplicaView
from functions.decisions.routing.retry import WORTH_A_LOAD, AttemptFailure
from functions.gateway.admission.queue import QueuedRequest
from functions.gateway.errors import ErrorAnswer
from functions.gateway.intake.models import as_control
from functions.gateway.quota import settlement
from functions.gateway.request import ending, replies
from functions.gateway.request.ending import EndingExchange
from functions.gateway.request.request import Admitted
from functions.gateway.routing.cold_wait import ColdWait, failed_otherwise, lacks_adapter
from functions.gateway.routing.rollout import Attempted
from functions.gateway.routing.wake_wait import NOBODY_SERVES, WakeWait


class Unserved(EndingExchange, QueuedRequest, Protocol):
    """The part of an exchange that is needed to wait or to move elsewhere."""

    deadline_s: float

    def move_to_pool(self, moved: Admitted) -> None: ...
    def replace_admitted(self, other: Admitted) -> None: ...
    def route(self) -> None: ...
    def decide(self, admitted: Admitted) -> Prediction | NoReplica: ...


def without_replica(exchange: Unserved, decision: NoReplica) -> None:
    """Use the rollout's old version, load the adapter, or move on, because no replica can serve the request."""
    tries, rollouts = exchange.tries, exchange.services.rollouts
    if _version_is_out(exchange, decision) and rollouts.may_fall_back(exchange.admitted):
        use_control_version(exchange)
    elif not lacks_adapter(decision, tries.failures, tries.tried):
        when = "saturated" if decision.reason == "told_to_wait" else tries.pool_state
        move_or_end(exchange, when, replies.no_replica(decision, tries.failures, exchange.admitted), decision.reason)
    elif rollouts.may_fall_back(exchange.admitted):
        use_control_version(exchange)
    elif decision.reason == "weights_not_loaded":
        answer = replies.no_replica(decision, tries.failures, exchange.admitted)
        move_or_end(exchange, "unavailable", answer, decision.reason)
    else:
        _load_cold(exchange)


def _version_is_out(exchange: Unserved, decision: NoReplica) -> bool:
    """Return True if all replicas with the requested version of the base are out: they failed or could not be
    reached.

    Replicas with another version may be healthy.
    """
    meant = exchange.admitted.model.weights is not None
    return meant and decision.reason == "all_tried" and WORTH_A_LOAD.issuperset(exchange.tries.failures)


def use_control_version(exchange: Unserved) -> None:
    """Route the request to its rollout's old version, because no replica has the new one or it was rolled back.

    This is recorded as evidence on the new version.
    """
    rollouts, tries = exchange.services.rollouts, exchange.tries
    last = tries.attempt if tries.failures else None
    attempted = Attempted(last.replica.id, last.sent_s, tries.failures[-1]) if last is not None else None
    rollouts.falls_back(exchange.admitted, attempted)
    control = as_control(exchange.admitted, rollouts.splits)
    if exchange.plan is not None:
        exchange.plan.request_changed(exchange.admitted, control)
    tries.tried = failed_otherwise(tries.tried)  # the pool stays the same, so its failed replicas stay excluded
    exchange.replace_admitted(control)
    exchange.route()


def move_or_end(exchange: Unserved, when: FallbackWhen, answer: ErrorAnswer, reason: str = "") -> None:
    """Move to another pool, wait for a pool at zero, or end with `answer`. `reason` is a metric label."""
    services, plan = exchange.services, exchange.plan
    is_at_zero = reason in NOBODY_SERVES and services.pool_wakes.request_pool(
        exchange.catalogue, exchange.admitted.model.pool
    )
    moved = None
    if plan is not None and services.clock() < exchange.deadline_s:
        moved = plan.onward(exchange.admitted, when, answer, exchange.tries.failures, reason)
    if plan is not None and moved is not None:
        if moved is plan.returned:
            services.admission.count_returned(moved)
        if exchange.cascade_spend is not None:
            services.usage.count_lost_answer(exchange.cascade_spend, exchange.admitted)
        exchange.cascade_spend = None  # the larger model failed: the small one answers again and is paid for once
        exchange.move_to_pool(moved)
    elif is_at_zero and (plan is None or not plan.is_away):
        _wait_for_pool(exchange)
    else:
        reject(exchange, answer, reason)


def reject(exchange: Unserved, answer: ErrorAnswer, reason: str) -> None:
    services, plan = exchange.services, exchange.plan
    if reason:
        services.metrics.shed(reason)
        services.admission.pools.shed(exchange.admitted, reason, plan.degraded if plan is not None else None)
    ending.end_with_error(exchange, plan.final_answer(answer) if plan is not None else answer)


def _load_cold(exchange: Unserved) -> None:
    """Wait for the adapter. Then `_cold_loaded` or `move_or_end` is called, unless the request ends before."""
    services = exchange.services
    if exchange.cold is None:
        exchange.cold = ColdWait(
            services.adapter_loads, services.clock, exchange.timeline,
            loaded=partial(_cold_loaded, exchange), failed=partial(move_or_end, exchange),
        )  # fmt: skip
    services.admission.defer(exchange)
    exchange.cold.start(exchange.admitted, exchange.tries.tried)


def _cold_loaded(exchange: Unserved, replica: ReplicaView) -> None:
    if exchange.tries.tried.get(replica.id) is AttemptFailure.ADAPTER_MISSING:
        del exchange.tries.tried[replica.id]
    exchange.route()


def _wait_for_pool(exchange: Unserved) -> None:
    """Wait for the first replica. Then `_pool_serves` or `reject` is called, unless the request ends before."""
    services = exchange.services
    services.admission.leave_pool(exchange, settlement.fair_cost_tokens(exchange, exchange.tries.attempt))
    exchange.tries.leave_pool()  # a new replica may have the name of one that was tried
    if exchange.wake is None:
        head = replies.more_headers(exchange.admitted, exchange.entry.headers)
        exchange.wake = WakeWait(
            services.pool_wakes, services.clock, exchange.timeline, exchange.sink,
            head=head, serves=partial(_pool_serves, exchange), failed=partial(reject, exchange),
        )  # fmt: skip
    exchange.wake.start(exchange.admitted, exchange.deadline_s)


def _pool_serves(exchange: Unserved) -> None:
    """Submit the request again to its pool's queue, without counting its arrival twice; an exception ends it."""
    try:
        exchange.services.admission.count_returned(exchange.admitted)
        exchange.services.admission.submit(exchange)
    except Exception:
        exchange.fail_internally()
