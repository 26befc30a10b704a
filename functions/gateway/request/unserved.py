"""A request that no replica can answer as it is: wait, ask in another way, or turn it down.

    no replica has its adapter      the rollout's old version answers it, where it may; else a replica loads it (`cold`)
    all that have its base are out  the rollout's old version answers it, where it may
    its pool is full, or gone       another pool (`plan`); its own, once that serves, where it is at zero (`wake`);
                                    else it is turned down with what the pool that it asked for said

Neighbours: `exchange` is the request; `second_tries` comes here when a pool has failed; `routing.cold_wait`,
`routing.wake_wait` and `routing.fallback_plan` know where to wait and where to go.
"""

from functools import partial
from typing import Protocol

from functions.api.snapshot import FallbackWhen
from functions.decisions.routing.choice import NoReplica, Prediction, ReplicaView
from functions.decisions.routing.retry import WORTH_A_LOAD, Failure
from functions.gateway.admission.queue import QueuedRequest
from functions.gateway.errors import ErrorAnswer
from functions.gateway.intake.models import as_control
from functions.gateway.quota import settlement
from functions.gateway.request import ending, replies
from functions.gateway.request.ending import Ending
from functions.gateway.request.request import Admitted
from functions.gateway.routing.cold_wait import ColdWait, failed_otherwise, lacks_adapter
from functions.gateway.routing.rollout import Attempted
from functions.gateway.routing.wake_wait import NOBODY_SERVES, WakeWait


class Unserved(Ending, QueuedRequest, Protocol):
    """An exchange, as far as it goes on elsewhere."""

    deadline_s: float

    def move(self, moved: Admitted) -> None: ...
    def take(self, other: Admitted) -> None: ...
    def route(self) -> None: ...
    def decide(self, admitted: Admitted) -> Prediction | NoReplica: ...


def without_replica(exchange: Unserved, decision: NoReplica) -> None:
    """No replica can take it as it is: the rollout's old version may, or a replica that loads the adapter."""
    tries, rollouts = exchange.tries, exchange.services.rollouts
    if _version_is_out(exchange, decision) and rollouts.may_fall_back(exchange.admitted):
        take_control(exchange)
    elif not lacks_adapter(decision, tries.failures, tries.tried):
        when = "saturated" if decision.reason == "told_to_wait" else tries.pool_is
        cannot(exchange, when, replies.no_replica(decision, tries.failures, exchange.admitted), decision.reason)
    elif rollouts.may_fall_back(exchange.admitted):
        take_control(exchange)
    elif decision.reason == "weights_not_loaded":
        answer = replies.no_replica(decision, tries.failures, exchange.admitted)
        cannot(exchange, "unavailable", answer, decision.reason)
    else:
        _load_cold(exchange)


def _version_is_out(exchange: Unserved, decision: NoReplica) -> bool:
    """Whether the replicas that have loaded the base's version that is meant are all out, for what they did to others
    or for what happened on the way there: those of another version may be well."""
    meant = exchange.admitted.model.weights is not None
    return meant and decision.reason == "all_tried" and WORTH_A_LOAD.issuperset(exchange.tries.failures)


def take_control(exchange: Unserved) -> None:
    """No replica has the rollout's new version, which the session has not seen or was rolled back: the old one."""
    rollouts, tries = exchange.services.rollouts, exchange.tries
    last = tries.attempt if tries.failures else None
    attempted = Attempted(last.replica.id, last.sent_s, tries.failures[-1]) if last is not None else None
    rollouts.falls_back(exchange.admitted, attempted)
    control = as_control(exchange.admitted, rollouts.splits)
    if exchange.plan is not None:
        exchange.plan.request_changed(exchange.admitted, control)
    tries.tried = failed_otherwise(tries.tried)  # in the same pool: what failed there has failed
    exchange.take(control)
    exchange.route()


def cannot(exchange: Unserved, when: FallbackWhen, answer: ErrorAnswer, reason: str = "") -> None:
    """Its pool cannot answer it: another one does, or it ends with `answer`. `reason` is a metric label."""
    services, plan = exchange.services, exchange.plan
    is_at_zero = reason in NOBODY_SERVES and services.pool_wakes.ask(exchange.catalogue, exchange.admitted.model.pool)
    moved = None
    if plan is not None and services.clock() < exchange.deadline_s:
        moved = plan.onward(exchange.admitted, when, answer, exchange.tries.failures, reason)
    if plan is not None and moved is not None:
        if moved is plan.returned:
            services.admission.returned(moved)
        if exchange.cascade_spend is not None:
            services.usage.lost_answer(exchange.cascade_spend, exchange.admitted)
        exchange.cascade_spend = None  # the larger model has failed; the small one is asked again, and paid for once
        exchange.move(moved)
    elif is_at_zero and (plan is None or not plan.is_away):
        _wait_for_pool(exchange)
    else:
        turn_down(exchange, answer, reason)


def turn_down(exchange: Unserved, answer: ErrorAnswer, reason: str) -> None:
    services, plan = exchange.services, exchange.plan
    if reason:
        services.metrics.shed(reason)
        services.admission.pools.shed(exchange.admitted, reason, plan.degraded if plan is not None else None)
    ending.give_up(exchange, plan.final_answer(answer) if plan is not None else answer)


def _load_cold(exchange: Unserved) -> None:
    """Wait for the adapter; then `_cold_loaded` or `cannot` is called, unless the request ends before."""
    services = exchange.services
    if exchange.cold is None:
        exchange.cold = ColdWait(
            services.adapter_loads, services.clock, exchange.timeline,
            loaded=partial(_cold_loaded, exchange), failed=partial(cannot, exchange),
        )  # fmt: skip
    services.admission.defer(exchange)
    exchange.cold.begin(exchange.admitted, exchange.tries.tried)


def _cold_loaded(exchange: Unserved, replica: ReplicaView) -> None:
    if exchange.tries.tried.get(replica.id) is Failure.ADAPTER_MISSING:
        del exchange.tries.tried[replica.id]
    exchange.route()


def _wait_for_pool(exchange: Unserved) -> None:
    """Wait for the first replica; then `_pool_serves` or `turn_down` is called, unless the request ends before."""
    services = exchange.services
    services.admission.released(exchange, settlement.fair_cost_tokens(exchange, exchange.tries.attempt))
    exchange.tries.leave_pool()  # a replica that is started anew may bear the name of one that was tried
    if exchange.wake is None:
        head = replies.more_headers(exchange.admitted, exchange.entry.headers)
        exchange.wake = WakeWait(
            services.pool_wakes, services.clock, exchange.timeline, exchange.sink,
            head=head, serves=partial(_pool_serves, exchange), failed=partial(turn_down, exchange),
        )  # fmt: skip
    exchange.wake.begin(exchange.admitted, exchange.deadline_s)


def _pool_serves(exchange: Unserved) -> None:
    """As if it came now; it counts once."""
    try:
        exchange.services.admission.returned(exchange.admitted)
        exchange.services.admission.submit(exchange)
    except Exception:
        exchange.failed_here()
