"""End of a request: the one `Ended` that its exchange is summed up in, and all that account for it.

What it used is `settlement`'s to say. Listeners are notified in their order (`assembly`); where one fails, the others
are notified all the same.
"""

import logging
from typing import Protocol

from functions.decisions.catalogue import Catalogue
from functions.gateway import errors
from functions.gateway.admission.queue import PoolTicket
from functions.gateway.quota import settlement
from functions.gateway.quota.accounts import RequestQuota
from functions.gateway.quota.settlement import Served
from functions.gateway.request.request import NOTHING_SPENT, Ended
from functions.gateway.routing.fallback_plan import FallbackPlan
from functions.gateway.services import Services

_log = logging.getLogger(__name__)
CLIENT_LEFT = 499


class Ending(Served, Protocol):
    """An exchange that has just ended: nothing of it changes any more."""

    catalogue: Catalogue
    entry: RequestQuota
    plan: FallbackPlan | None
    ticket: PoolTicket | None

    def fingerprint(self) -> bytes: ...


def account_for(services: Services, exchange: Ending, status: int, code: str) -> None:
    """Notify all listeners. The exchange lets go of its attempt, its split and its ticket, which know it: else only the
    collector would free them, and a body with them.
    """
    ended = ended_of(services, exchange, status, code)
    exchange.tries.attempt = exchange.ticket = None
    if exchange.split is not None:
        exchange.split.leave()
    for listener in services.end_listeners:
        try:
            listener(ended)
        except Exception:
            _log.exception("request %s is not accounted for by %r", exchange.admitted.request_id, listener)
    if status >= 500:
        why = ",".join(failure.value for failure in ended.failures) or code
        _log.warning("request %s ended with %d (%s)", exchange.admitted.request_id, status, why)


def ended_of(services: Services, exchange: Ending, status: int, code: str) -> Ended:
    """All that is to be known of it."""
    admitted, attempt, plan = exchange.admitted, exchange.tries.attempt, exchange.plan
    gave_up = code == errors.DEADLINE_EXCEEDED and _is_past_own_deadline(services, exchange)
    spent = settlement.spent(exchange, attempt, services.fleet, client_left=status == CLIENT_LEFT or gave_up)
    beside = exchange.cascade_spend
    split = exchange.split
    prefill = settlement.prefill_spend(exchange, spent, client_left=status == CLIENT_LEFT or gave_up)
    if prefill is not None:
        spent = settlement.both(spent, prefill.spent)
    gaps = attempt.gaps if attempt is not None else None
    is_judged = attempt is None or (beside is not None and beside.attempt is attempt)
    return Ended(
        admitted=admitted,
        timeline=exchange.timeline,
        snapshot_epoch=exchange.catalogue.epoch,
        status=status,
        code=code,
        gave_up=gave_up,
        begun=exchange.begun,
        ticket=exchange.ticket,
        entry=exchange.entry,
        attempts=exchange.tries.count,
        failures=exchange.tries.all_failures,
        fingerprint=exchange.fingerprint,
        usage=exchange.usage,
        delivered_tokens=0 if attempt is None or is_judged else settlement.delivered_tokens(exchange, attempt),
        spent=spent if beside is None else settlement.both(spent, beside.spent),
        worked=spent is not NOTHING_SPENT,
        cost_tokens=settlement.fair_cost_tokens(exchange, attempt),
        cascade_spend=beside,
        prediction=attempt.prediction if attempt is not None else None,
        sent_s=attempt.sent_s if attempt is not None else 0.0,
        gaps=gaps,
        token_gaps=gaps.between_tokens(attempt.tokens) if attempt is not None and gaps is not None else (),
        events=attempt.events if attempt is not None else 0,
        tokens=attempt.tokens if attempt is not None and admitted.stream else 0,
        last=attempt.last if attempt is not None else (),
        cascade=plan.cascade.outcome() if plan is not None and plan.cascade is not None else None,
        degraded_from=plan.requested_model if plan is not None else "",
        prefill=prefill,
        split=split.notes() if split is not None else None,
    )


def _is_past_own_deadline(services: Services, exchange: Ending) -> bool:
    """Whether its caller's deadline ended it, rather than a clock of the platform's."""
    deadline_ms, timeline = exchange.admitted.deadline_ms, exchange.timeline
    if deadline_ms is None or deadline_ms / 1000 >= services.limits.answer_s:
        return False
    return timeline.ended_s - timeline.received_s >= deadline_ms / 1000
