"""End of a request: the client's last bytes, one `Ended` record, and the listeners that receive it.

    nothing sent yet        a whole error                        `end_with_error`
    in mid-stream           an error event, no `[DONE]`          `end_broken_stream`
    all of it sent          nothing more                         `finish`

`settlement` decides what the request used. Listeners are notified in the order of `assembly`. If one fails, the
others are still notified.
"""

import logging
from typing import Protocol

from functions.decisions.catalogue import Catalogue
from functions.gateway import errors
from functions.gateway.admission.queue import PoolTicket
from functions.gateway.errors import ErrorAnswer
from functions.gateway.http.sink import Sink
from functions.gateway.quota import settlement
from functions.gateway.quota.accounts import RequestQuota
from functions.gateway.quota.settlement import Served
from functions.gateway.request import replies
from functions.gateway.request.attempt import Attempt
from functions.gateway.request.request import NOTHING_SPENT, Ended
from functions.gateway.routing.cold_wait import ColdWait
from functions.gateway.routing.fallback_plan import FallbackPlan
from functions.gateway.routing.wake_wait import WakeWait
from functions.gateway.services import OpenRequest, Services

_log = logging.getLogger(__name__)
CLIENT_LEFT = 499


class EndingExchange(Served, OpenRequest, Protocol):
    """The part of an exchange that is needed to end it."""

    services: Services
    sink: Sink
    catalogue: Catalogue
    entry: RequestQuota
    plan: FallbackPlan | None
    ticket: PoolTicket | None
    cold: ColdWait | None
    wake: WakeWait | None
    ended: bool

    def fingerprint(self) -> bytes: ...


def stop(exchange: EndingExchange, answer: ErrorAnswer) -> None:
    """End the request with this error, or as finished if a complete answer has just passed; drop its attempts."""
    exchange.tries.drop()
    attempt = exchange.tries.attempt
    if attempt is None or not exchange.begun:
        end_with_error(exchange, answer)
    elif attempt.done:
        finish(exchange, attempt)
    else:
        end_broken_stream(exchange, attempt, answer)


def finish(exchange: EndingExchange, attempt: Attempt) -> None:
    """End a request whose stream is complete: take over the attempt's usage and end the client's stream (200)."""
    exchange.usage = attempt.usage
    exchange.sink.end(b"")
    end(exchange, 200)


def end_broken_stream(exchange: EndingExchange, attempt: Attempt, answer: ErrorAnswer) -> None:
    """End a stream after its first byte: send an error event, no `[DONE]`, and a clean end of the body."""
    admitted = exchange.admitted
    exchange.sink.end(admitted.route.dialect.error_event(answer, admitted.request_id, attempt.passed))
    end(exchange, answer.status, answer.code)


def end_with_error(exchange: EndingExchange, answer: ErrorAnswer) -> None:
    """End a request before the engine's first byte: a whole error, or an error event if wake comments were sent."""
    admitted = exchange.admitted
    if exchange.wake is not None and exchange.wake.told:
        exchange.sink.end(admitted.route.dialect.error_event(answer, admitted.request_id, 0))
    else:
        more = replies.more_headers(admitted, exchange.entry.headers)
        body = admitted.route.dialect.error_body(answer, admitted.request_id)
        exchange.sink.whole(answer.status, replies.error_headers(admitted.request_id, answer, more), body)
    end(exchange, answer.status, answer.code)


def settle_cascade(exchange: EndingExchange) -> None:
    """Record what the small model has generated so far, because the tenant pays for it."""
    services, plan = exchange.services, exchange.plan
    judge = plan.judge(exchange.admitted) if plan is not None else None
    exchange.cascade_spend = settlement.cascade_spend(
        exchange, judge, exchange.tries.attempt, services.fleet, services.clock()
    )


def end(exchange: EndingExchange, status: int, code: str = "") -> None:
    """End the request: leave all waits, drop all attempts and notify all listeners. Does nothing if it has ended."""
    if exchange.ended:
        return
    exchange.ended = True
    services, attempt = exchange.services, exchange.tries.attempt
    if exchange.cold is not None:
        exchange.cold.leave()
    if exchange.wake is not None:
        exchange.wake.leave()
    exchange.tries.drop()
    if exchange.split is not None:
        exchange.split.drop()
    if attempt is not None:
        exchange.timeline.connected_s = attempt.connected_s
        # A stream that was cut off; the engine may have reported usage before
        if exchange.begun and exchange.usage is None:
            exchange.usage = settlement.counted_usage(exchange, attempt)
    exchange.timeline.ended_s = services.clock()
    services.open_requests.pop(exchange, None)
    ended = ended_of(services, exchange, status, code)
    # Drop the references to attempt, split and ticket, which refer back to the exchange. Otherwise the cycle, and a
    # body, would stay in memory until garbage collection.
    exchange.tries.attempt = exchange.ticket = None
    if exchange.split is not None:
        exchange.split.release()
    for listener in services.end_listeners:
        try:
            listener(ended)
        except Exception:
            _log.exception("request %s: end listener %r failed", exchange.admitted.request_id, listener)
    if status >= 500:
        why = ",".join(failure.value for failure in ended.failures) or code
        _log.warning("request %s ended with %d (%s)", exchange.admitted.request_id, status, why)


def ended_of(services: Services, exchange: EndingExchange, status: int, code: str) -> Ended:
    """Return the record of an ended request, with its costs, for all end listeners."""
    admitted, attempt, plan = exchange.admitted, exchange.tries.attempt, exchange.plan
    gave_up = code == errors.DEADLINE_EXCEEDED and _is_past_own_deadline(services, exchange)
    spent = settlement.spent(exchange, attempt, services.fleet, client_left=status == CLIENT_LEFT or gave_up)
    beside = exchange.cascade_spend
    split = exchange.split
    prefill = None
    if split is not None:
        prefill = settlement.prefill_spend(exchange, split, spent, client_left=status == CLIENT_LEFT or gave_up)
    if prefill is not None:
        spent = settlement.add_spent(spent, prefill.spent)
    gaps = attempt.gaps if attempt is not None else None
    is_judged = beside is not None and beside.attempt is attempt
    delivered_tokens = events = tokens = 0
    if attempt is not None and admitted.stream:
        events, tokens = attempt.events, attempt.tokens
        delivered_tokens = settlement.delivered_tokens(exchange, attempt) if not is_judged else 0
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
        delivered_tokens=delivered_tokens,
        spent=spent if beside is None else settlement.add_spent(spent, beside.spent),
        worked=spent is not NOTHING_SPENT,
        cost_tokens=settlement.fair_cost_tokens(exchange, attempt),
        cascade_spend=beside,
        prediction=attempt.prediction if attempt is not None else None,
        sent_s=attempt.sent_s if attempt is not None else 0.0,
        gaps=gaps,
        token_gaps=gaps.between_tokens(tokens) if gaps is not None else (),
        events=events,
        tokens=tokens,
        last=attempt.last if attempt is not None else (),
        cascade=plan.cascade.outcome() if plan is not None and plan.cascade is not None else None,
        degraded_from=plan.requested_model if plan is not None else "",
        prefill=prefill,
        split=split.notes() if split is not None else None,
    )


def _is_past_own_deadline(services: Services, exchange: EndingExchange) -> bool:
    """Return True if the caller's own deadline, shorter than the platform's `answer_s`, had passed at the end."""
    deadline_ms, timeline = exchange.admitted.deadline_ms, exchange.timeline
    if deadline_ms is None or deadline_ms / 1000 >= services.limits.answer_s:
        return False
    return timeline.ended_s - timeline.received_s >= deadline_ms / 1000
