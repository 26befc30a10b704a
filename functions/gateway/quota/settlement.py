"""Settlement of a request: its cost and the charge for it. No other module decides them.

The engine's count is charged. For a broken answer (the client left, the replica was lost) it is the count of the last
event. If the engine does not count during a stream, the delivered events and their text are charged (`event_counts`),
and the estimated prompt. This includes a client that leaves before any output, or whose own deadline passes:
otherwise clients that leave early would get prefills for free. Attempts that failed before any output cost the tenant
nothing, and neither does the loser of a hedge: the platform causes both. The small model's part of a cascade is
charged in addition (`CascadeSpend`), because the policy requests both models.

`functions.decisions.quota.dimensions` has the formulae. An exchange calls `spent` once, at its end. `settle` is one
of the listeners that receive its `Ended`.
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol

import msgspec

from functions.decisions.admission.ticket import cost_tokens, uncounted_cost_tokens
from functions.decisions.catalogue import ResolvedModel
from functions.decisions.quota.dimensions import gpu_seconds, kv_token_seconds
from functions.fleet.view import FleetView
from functions.gateway.quota.accounts import Charged
from functions.gateway.request.answers import Usage
from functions.gateway.request.attempt import Attempt
from functions.gateway.request.request import (
    NOTHING_SPENT,
    Admitted,
    CascadeSpend,
    Ended,
    PrefillSpend,
    Spent,
    Timeline,
)
from functions.gateway.request.split import PrefillSplit
from functions.gateway.request.tries import Tries
from functions.gateway.routing.cascade import CascadeJudge


class Served(Protocol):
    """The part of an exchange that determines its cost."""

    admitted: Admitted
    timeline: Timeline
    usage: Usage | None
    cascade_spend: CascadeSpend | None
    tries: Tries
    begun: bool
    split: PrefillSplit | None


class _Period(NamedTuple):
    """Time for which an engine had a request, in monotonic seconds. `first_token_s` is 0 if it was not seen."""

    connected_s: float
    first_token_s: float
    ended_s: float


class Ledger(Protocol):
    """Sums of usage for billing."""

    def count(self, ended: Ended, charged: Charged | None) -> None: ...


def settle(clock: Callable[[], float], ledger: Ledger, ended: Ended) -> None:
    """Charge the request's accounts, count its usage in the ledger, and free its slot."""
    beside, usage, now_s = ended.cascade_spend, ended.usage, clock()
    if beside is not None and not ended.worked and usage is None:
        usage = Usage()  # the answer itself cost nothing
    charged = ended.entry.settle(
        usage,
        ended.delivered_tokens,
        ended.spent.kv_token_seconds,
        ended.spent.gpu_seconds,
        now_s,
        beside=beside.usage if beside is not None else None,
        worked=ended.worked,
    )
    ledger.count(ended, charged)
    ended.entry.leave(now_s)


def spent(exchange: Served, attempt: Attempt | None, fleet: FleetView, *, client_left: bool) -> Spent:
    """Return the resources spent on the answer, without an earlier small model.

    NOTHING_SPENT if no engine has worked, or if the request failed without an answer through no action of the client.
    """
    beside = exchange.cascade_spend
    if attempt is None or (beside is not None and beside.attempt is attempt):
        return NOTHING_SPENT
    timeline, usage = exchange.timeline, exchange.usage
    if usage is None:
        waits = client_left and exchange.admitted.route.is_read and _is_at_work(exchange, attempt)
        if not exchange.begun and not waits:
            return NOTHING_SPENT
        usage = Usage(exchange.admitted.features.prompt_tokens, delivered_tokens(exchange, attempt))
    first_token_s = timeline.first_token_s if exchange.admitted.stream else 0.0
    period = _Period(timeline.connected_s, first_token_s, timeline.ended_s)
    # The decoding replica computed nothing of the prompt
    if exchange.split is not None and exchange.split.is_handed(attempt):
        usage = msgspec.structs.replace(usage, cached_tokens=usage.prompt_tokens)
    return _spent_on(usage, attempt, period, fleet, exchange.admitted.model)


def prefill_spend(exchange: Served, split: PrefillSplit, answer: Spent, *, client_left: bool) -> PrefillSpend | None:
    """Return a prefill's cost if it led to the answer or the client left before it, else None: not charged."""
    if not split.is_at_work() or (answer is NOTHING_SPENT and not client_left):
        return None
    return split.spend(exchange.timeline.ended_s)


def add_spent(one: Spent, other: Spent) -> Spent:
    return Spent(one.kv_token_seconds + other.kv_token_seconds, one.gpu_seconds + other.gpu_seconds)


def fair_cost_tokens(exchange: Served, attempt: Attempt | None) -> int | None:
    """Return the cost that fairness charges to the tenant, in `cost_tokens`: 0 without an attempt.

    None means that the expected cost is charged.
    """
    usage = exchange.usage
    if usage is not None:
        return cost_tokens(max(0, usage.prompt_tokens - usage.cached_tokens), usage.completion_tokens)
    if attempt is None:
        return 0
    return uncounted_cost_tokens(
        exchange.admitted.features.prompt_tokens,
        delivered_tokens(exchange, attempt),
        at_work=_is_at_work(exchange, attempt),
        begun=exchange.begun,
    )


def counted_usage(exchange: Served, attempt: Attempt) -> Usage | None:
    """Return the engine's usage of a stream that was cut off, but at least what was delivered; None if it has none.

    Some engines count early.
    With several prompts, engines report the usage of one at a time.
    """
    usage, features = attempt.usage, exchange.admitted.features
    if usage is None or attempt.done:
        return usage
    delivered = 0 if attempt.is_counted else delivered_tokens(exchange, attempt)
    return msgspec.structs.replace(
        usage,
        prompt_tokens=max(usage.prompt_tokens, features.prompt_tokens if features.choices > 1 else 0),
        completion_tokens=max(usage.completion_tokens, delivered),
    )


def unread_answer_usage(admitted: Admitted) -> Usage | None:
    """Return the usage to charge for an answer that is too large to pass on: the estimate, because an engine
    generated it.

    A stream was stopped at its first event. A whole answer was generated completely.
    """
    if not admitted.route.is_read:
        return None
    return Usage(admitted.features.prompt_tokens, 0 if admitted.stream else admitted.features.expected_output_tokens)


def cascade_spend(
    exchange: Served, judge: CascadeJudge | None, attempt: Attempt | None, fleet: FleetView, now_s: float
) -> CascadeSpend | None:
    """Return the small model's cost so far if the request ends while it answers, else the cost recorded before."""
    if judge is None or attempt is None or not attempt.begun or attempt.over or exchange.begun:
        return exchange.cascade_spend
    return judged_spend(judge, attempt, fleet, now_s)


def judged_spend(judge: CascadeJudge, attempt: Attempt, fleet: FleetView, now_s: float) -> CascadeSpend:
    """Return the cost so far of a small model's answer, finished or not."""
    admitted = judge.plain
    usage = judge.usage or Usage(admitted.features.prompt_tokens, judge.counted_tokens)
    first_token_s = judge.first_token_s if admitted.stream else 0.0
    period = _Period(attempt.connected_s, first_token_s, now_s)
    return CascadeSpend(admitted.model, usage, _spent_on(usage, attempt, period, fleet, admitted.model), attempt)


def delivered_tokens(exchange: Served, attempt: Attempt) -> int:
    """Return the tokens of a stream that were delivered, 0 before its begin.

    A chat's first event, which has a role and no text, does not count.
    """
    output = exchange.admitted.route.output
    begins_with_role = output is not None and output.prompt == "messages"
    return max(0, attempt.tokens - int(begins_with_role)) if exchange.begun else 0


def _is_at_work(exchange: Served, attempt: Attempt) -> bool:
    """Return True if an engine has the request: it was sent and fewer attempts failed than were made."""
    return attempt.connected_s > 0.0 and len(exchange.tries.all_failures) < exchange.tries.count


def _spent_on(usage: Usage, attempt: Attempt, served: _Period, fleet: FleetView, model: ResolvedModel) -> Spent:
    replica = attempt.replica
    uncached_tokens = usage.prompt_tokens - usage.cached_tokens
    served_s = max(0.0, served.ended_s - served.connected_s)
    if served.first_token_s:
        prefill_s = max(0.0, served.first_token_s - served.connected_s)
    else:
        prefill_s = max(0.0, min(served_s, uncached_tokens * replica.prefill_ms_per_token / 1000.0))
    decode_s = max(0.0, served_s - prefill_s)
    latest = fleet.replica(replica.id) or replica
    batch = (replica.running + 1 + max(1, latest.running)) / 2.0
    return Spent(
        kv_token_seconds(usage.prompt_tokens, usage.completion_tokens, prefill_s, decode_s),
        gpu_seconds(uncached_tokens, replica.prefill_ms_per_token, decode_s, batch, model.accelerators_per_replica),
    )
