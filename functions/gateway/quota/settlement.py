"""What an exchange that has ended cost, and the charge for it: the one place where requests are settled.

What the engine counted is charged; where it could not say (the client left, the replica was lost) what was delivered,
an event a token, and the prompt as it was estimated, also where the client left before anything came, or its own
deadline passed: else whoever leaves early has engines read for nothing. Attempts that failed before anything was
delivered cost the tenant nothing, and neither does the loser of two attempts at once: the platform's faults and its
haste are not its own. What the small model of a cascade said before the larger one was asked is charged besides
(`Aside`): the policy wants both.

Neighbours: `functions.decisions.request.cost` has the formulae; `core` calls `settle` once for each exchange; the trace
tells what it returns.
"""

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from functions.api.ids import PoolName
from functions.decisions.admission.ticket import cost_tokens, uncounted_cost_tokens
from functions.decisions.request.cost import gpu_seconds, kv_token_seconds
from functions.gateway.request.relay import Usage

if TYPE_CHECKING:
    from functions.fleet.view import FleetView
    from functions.gateway.gateway import Gateway
    from functions.gateway.intake.intake import Admitted
    from functions.gateway.request.attempt import Attempt
    from functions.gateway.request.exchange import Exchange
    from functions.gateway.routing.cascade import Trial


class Spent(NamedTuple):
    """Of a replica."""

    kv_token_seconds: float
    gpu_seconds: float


class Aside(NamedTuple):
    """An answer that was paid for, and that nobody got."""

    pool: PoolName
    usage: Usage
    spent: Spent
    attempt: "Attempt"  # that gave it


class _Served(NamedTuple):
    """How long an engine had a request; monotonic seconds. `first_token_s` is 0 where it was not seen."""

    connected_s: float
    first_token_s: float
    ended_s: float


_NOTHING = Spent(0.0, 0.0)


def settle(
    exchange: "Exchange", attempt: "Attempt | None", fleet: "FleetView", now_s: float, *, client_left: bool = False
) -> Spent:
    """Charge the exchange's account, and give back its place."""
    aside, usage = exchange.aside, exchange.usage
    if attempt is None or (aside is not None and aside.attempt is attempt):
        spent, delivered_tokens = _NOTHING, 0
    else:
        spent, delivered_tokens = _spent(exchange, attempt, fleet, client_left), _delivered_tokens(exchange, attempt)
    worked = spent is not _NOTHING
    if aside is not None:
        if not worked and usage is None:
            usage = Usage()  # the answer itself has not cost anything
        spent = Spent(
            spent.kv_token_seconds + aside.spent.kv_token_seconds, spent.gpu_seconds + aside.spent.gpu_seconds
        )
    beside = aside.usage if aside is not None else None
    exchange.entry.settle(
        usage, delivered_tokens, spent.kv_token_seconds, spent.gpu_seconds, now_s, beside=beside, worked=worked
    )
    exchange.entry.leave(now_s)
    return spent


def cost_in_room(exchange: "Exchange", attempt: "Attempt | None") -> int | None:
    """What fairness has its tenant down for, in `cost_tokens`; None: as much as was expected of it."""
    usage = exchange.usage
    if usage is not None:
        return cost_tokens(max(0, usage.prompt_tokens - usage.cached_tokens), usage.completion_tokens)
    if attempt is None:
        return 0
    return uncounted_cost_tokens(
        exchange.admitted.features.prompt_tokens,
        _delivered_tokens(exchange, attempt),
        at_work=_is_at_work(exchange, attempt),
        begun=exchange.begun,
    )


def told(exchange: "Exchange", attempt: "Attempt") -> Usage | None:
    """What the engine counted of a stream that was cut off: no less than was delivered, since some tell early."""
    usage = attempt.usage
    delivered_tokens = _delivered_tokens(exchange, attempt)
    if usage is None or attempt.done or usage.completion_tokens >= delivered_tokens:
        return usage
    return msgspec.structs.replace(usage, completion_tokens=delivered_tokens)


def unread(admitted: "Admitted") -> Usage | None:
    """Of an answer too large to be passed on: an engine has made it, and is paid for it as was foreseen.

    A stream was stopped at its first event; what comes whole was made whole.
    """
    if not admitted.route.is_read:
        return None
    return Usage(admitted.features.prompt_tokens, 0 if admitted.stream else admitted.features.expected_output_tokens)


def aside_of(
    exchange: "Exchange", trial: "Trial | None", attempt: "Attempt | None", gateway: "Gateway"
) -> Aside | None:
    """Of a request that ends before its time: what a small model has said up to now, which is paid for, too."""
    if trial is None or attempt is None or not attempt.begun or attempt.over or exchange.begun:
        return exchange.aside
    return of_trial(trial, attempt, gateway)


def of_trial(trial: "Trial", attempt: "Attempt", gateway: "Gateway") -> Aside:
    """What a small model's answer has cost up to now, whether or not it has come to its end."""
    admitted = trial.plain
    usage = trial.usage or Usage(admitted.features.prompt_tokens, trial.counted_tokens)
    first_token_s = trial.first_token_s if admitted.stream else 0.0
    served = _Served(attempt.connected_s, first_token_s, gateway.clock())
    return Aside(admitted.model.pool, usage, _spent_on(usage, attempt, served, gateway.fleet), attempt)


def _delivered_tokens(exchange: "Exchange", attempt: "Attempt") -> int:
    """Of a stream, an event a token, but for the one with which a chat begins: it has a role and no text."""
    output = exchange.admitted.route.output
    begins_with_role = output is not None and output.prompt == "messages"
    return max(0, attempt.events - int(begins_with_role)) if exchange.begun else 0


def _spent(exchange: "Exchange", attempt: "Attempt", fleet: "FleetView", client_left: bool) -> Spent:
    """Nothing where no engine has worked, or where it is not the client's doing that nothing came of it."""
    timeline, usage = exchange.timeline, exchange.usage
    if usage is None:
        waits = client_left and exchange.admitted.route.is_read and _is_at_work(exchange, attempt)
        if not exchange.begun and not waits:
            return _NOTHING
        usage = Usage(exchange.admitted.features.prompt_tokens, _delivered_tokens(exchange, attempt))
    first_token_s = timeline.first_token_s if exchange.admitted.stream else 0.0
    return _spent_on(usage, attempt, _Served(timeline.connected_s, first_token_s, timeline.ended_s), fleet)


def _is_at_work(exchange: "Exchange", attempt: "Attempt") -> bool:
    """Whether an engine has the request: it was sent, and has not failed there."""
    return attempt.connected_s > 0.0 and len(exchange.all_failures) < exchange.attempts


def _spent_on(usage: Usage, attempt: "Attempt", served: _Served, fleet: "FleetView") -> Spent:
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
        gpu_seconds(uncached_tokens, replica.prefill_ms_per_token, decode_s, batch),
    )
