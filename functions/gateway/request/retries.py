"""Retry and hedge a request. A retry starts a new attempt after a failure; a hedge starts a second attempt beside a
slow one.

Both are possible only before the first byte reaches the client, and both spend the retry budget of the pool.
`functions.decisions.routing.retry` decides whether a failure may be retried.

`exchange` is the request, `tries` knows its attempts, `hedging` decides when an attempt is late, and `unserved`
continues if the pool has failed.
"""

from typing import Protocol

from functions.api.ids import ReplicaId
from functions.decisions.routing.choice import NoReplica
from functions.decisions.routing.retry import DEATHS_MAX, REFUSALS, AttemptFailure, count_lost_replicas, may_retry
from functions.gateway.request import ending, replies, unserved
from functions.gateway.request.answers import Renaming
from functions.gateway.request.attempt import Attempt, Owner
from functions.gateway.request.split import PrefillSplit
from functions.gateway.request.unserved import Unserved


class RetryableExchange(Unserved, Owner, Protocol):
    """The part of an exchange that is needed to start another attempt."""

    renaming: Renaming


def retry_or_end(exchange: RetryableExchange, attempt: Attempt, failure: AttemptFailure) -> None:
    """Continue after a failed attempt: with a running hedge, another attempt or another pool, or end the request.

    The lost work of an attempt that the engine did not refuse is counted.
    """
    services, tries, now_s = exchange.services, exchange.tries, exchange.services.clock()
    if failure not in REFUSALS:
        services.usage.count_lost_attempt(attempt, now_s)
    if failure is AttemptFailure.ADAPTER_MISSING:
        services.fleet.retract_adapter(attempt.replica.id, exchange.admitted.model.engine_name)
    exchange.due_s = 0.0
    if tries.continue_without(attempt):
        return
    if exchange.split is not None and exchange.split.decode_failed(attempt, failure):
        tries.disregard(attempt, failure)
        exchange.route()
        return
    held = services.quarantine.after_failures(exchange, now_s)
    if held is not None:  # a request that breaks engines would break those of another pool too
        ending.end_with_error(exchange, held)
    elif _may_retry(exchange, now_s):
        services.metrics.retried()
        exchange.route()
    else:
        answer = replies.all_failed(tries.failures, now_s >= exchange.deadline_s, exchange.admitted)
        unserved.move_or_end(exchange, tries.pool_state, answer)


def _may_retry(exchange: RetryableExchange, now_s: float) -> bool:
    tries, admitted = exchange.tries, exchange.admitted
    max_attempts = admitted.routing.retry_max_attempts
    return (
        may_retry(tries.failures, max_attempts, now_s, exchange.deadline_s, int(exchange.begun))
        and count_lost_replicas(tries.all_failures) < DEATHS_MAX
        and exchange.services.retry_budgets.try_spend(admitted, exchange.services.clock())
    )


def hedge_if_late(exchange: RetryableExchange, now_s: float) -> None:
    """Start a second attempt beside a late first one, if a replica and retry budget are available."""
    admitted, tries = exchange.admitted, exchange.tries
    if not tries.is_late(admitted, now_s):
        return
    decision = exchange.decide(admitted)
    if isinstance(decision, NoReplica) or (exchange.plan is not None and exchange.plan.judge(admitted) is not None):
        return
    if exchange.services.retry_budgets.try_spend(admitted, exchange.services.clock()):
        tries.start_hedge(exchange, admitted, decision, exchange.renaming)


def check_split_timeout(exchange: RetryableExchange, split: PrefillSplit, now_s: float) -> None:
    """Give up on a slow prefill pool, and on the attempt that waits for its KV blocks."""
    exchange.due_s = min(exchange.due_s, split.due_s)
    split.check(now_s)
    slow = split.give_up_slow_transfer(now_s) if not exchange.ended else None
    if slow is not None and not exchange.tries.continue_without(slow):
        exchange.tries.tried.pop(slow.replica.id, None)
        exchange.route()


def replica_lost(exchange: RetryableExchange, replica_id: ReplicaId) -> None:
    """Fail the attempt on a replica that the fleet reports dead or hung, if nothing was sent and another replica can
    serve.

    A pool whose replicas all look hung is usually starved, and then waiting is better.
    """
    if exchange.split is not None:
        exchange.split.replica_lost(replica_id)
    tries = exchange.tries
    attempt = tries.attempt_at(replica_id) if not exchange.begun else None
    if attempt is not None and (
        tries.second is not None or not isinstance(exchange.decide(exchange.admitted), NoReplica)
    ):
        attempt.fail(AttemptFailure.REPLICA_LOST, "the fleet reports it dead or hung")
