"""Second tries of a request: after an attempt that failed, and beside one that is late.

Both are for requests of which nothing has gone to the client yet, and both are paid for from the retry budget of tenant
and pool. Whether a failure may be retried is `functions.decisions.routing.retry`'s to say.

Neighbours: `exchange` is the request, `tries` knows its attempts, `hedging` says when one is late; `unserved` goes on
where the pool has failed.
"""

from typing import Protocol

from functions.api.ids import ReplicaId
from functions.decisions.routing.choice import NoReplica
from functions.decisions.routing.retry import DEATHS_MAX, REFUSALS, Failure, died_with, may_retry
from functions.gateway.request import ending, replies, unserved
from functions.gateway.request.answers import Renaming
from functions.gateway.request.attempt import Attempt, Owner
from functions.gateway.request.split import Split
from functions.gateway.request.unserved import Unserved


class Retried(Unserved, Owner, Protocol):
    """An exchange, as far as its attempts begin again."""

    renaming: Renaming


def after_failure(exchange: Retried, attempt: Attempt, failure: Failure) -> None:
    """It goes on with another attempt, elsewhere, or ends."""
    services, tries, now_s = exchange.services, exchange.tries, exchange.services.clock()
    if failure not in REFUSALS:
        services.usage.lost_attempt(attempt, now_s)
    if failure is Failure.ADAPTER_MISSING:
        services.fleet.retract_adapter(attempt.replica.id, exchange.admitted.model.engine_name)
    exchange.due_s = 0.0
    if tries.goes_on_without(attempt):
        return
    if exchange.split is not None and exchange.split.decode_failed(attempt, failure):
        tries.disregard(attempt, failure)
        exchange.route()
        return
    held = services.quarantine.after_failures(exchange, now_s)
    if held is not None:  # in another pool it would go on as it went here
        ending.give_up(exchange, held)
    elif _may_retry(exchange, now_s):
        services.metrics.retried()
        exchange.route()
    else:
        answer = replies.all_failed(tries.failures, now_s >= exchange.deadline_s, exchange.admitted)
        unserved.cannot(exchange, tries.pool_is, answer)


def _may_retry(exchange: Retried, now_s: float) -> bool:
    tries, admitted = exchange.tries, exchange.admitted
    max_attempts = admitted.routing.retry_max_attempts
    return (
        may_retry(tries.failures, max_attempts, now_s, exchange.deadline_s, int(exchange.begun))
        and died_with(tries.all_failures) < DEATHS_MAX
        and exchange.services.retry_budgets.try_spend(admitted, exchange.services.clock())
    )


def hedge_if_late(exchange: Retried, now_s: float) -> None:
    """A second attempt beside a late first one, where there is a replica and budget for it."""
    admitted, tries = exchange.admitted, exchange.tries
    if not tries.is_late(admitted, now_s):
        return
    decision = exchange.decide(admitted)
    if isinstance(decision, NoReplica) or (exchange.plan is not None and exchange.plan.judge(admitted) is not None):
        return
    if exchange.services.retry_budgets.try_spend(admitted, exchange.services.clock()):
        tries.begin_second(exchange, admitted, decision, exchange.renaming)


def look_at_split(exchange: Retried, split: Split, now_s: float) -> None:
    """The prefill pool may be slow, and the attempt that waits for its blocks with it."""
    exchange.due_s = min(exchange.due_s, split.due_s)
    split.check(now_s)
    slow = split.gives_up(now_s) if not exchange.ended else None
    if slow is not None and not exchange.tries.goes_on_without(slow):
        exchange.tries.tried.pop(slow.replica.id, None)
        exchange.route()


def replica_lost(exchange: Retried, replica_id: ReplicaId) -> None:
    """The fleet says that the replica is dead or hung: while nothing was sent, go elsewhere.

    If there is an elsewhere. When a whole pool looks hung it is usually starved, and waiting is the better bet.
    """
    if exchange.split is not None:
        exchange.split.replica_lost(replica_id)
    tries = exchange.tries
    attempt = tries.at(replica_id) if not exchange.begun else None
    if attempt is not None and (
        tries.second is not None or not isinstance(exchange.decide(exchange.admitted), NoReplica)
    ):
        attempt.fail(Failure.REPLICA_LOST, "the fleet reports it dead or hung")
