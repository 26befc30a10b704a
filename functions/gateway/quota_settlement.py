"""What an exchange that has ended cost, and the charge for it: the one place where requests are settled.

What the engine counted is charged; where it could not say (the client left, the replica was lost) what was delivered,
an event a token, and the prompt as it was estimated. Attempts that failed before anything was delivered cost the tenant
nothing: the platform's faults are not its own.

Neighbours: `functions.decisions.request_cost` has the formulae; `core` calls this once for each exchange; the trace
tells what it returns.
"""

from typing import TYPE_CHECKING, NamedTuple

from functions.decisions.request_cost import gpu_seconds, kv_token_seconds

if TYPE_CHECKING:
    from functions.fleet.view import FleetView
    from functions.gateway.attempt import Attempt
    from functions.gateway.exchange import Exchange


class Spent(NamedTuple):
    """Of a replica."""

    kv_token_seconds: float
    gpu_seconds: float


_NOTHING = Spent(0.0, 0.0)


def settle(exchange: "Exchange", attempt: "Attempt | None", fleet: "FleetView", now_s: float) -> Spent:
    """Charge the exchange's account, and give back its place."""
    spent = _spent(exchange, attempt, fleet) if attempt is not None else _NOTHING
    delivered_tokens = _delivered_tokens(exchange, attempt) if attempt is not None else 0
    exchange.entry.settle(exchange.usage, delivered_tokens, spent.kv_token_seconds, spent.gpu_seconds, now_s)
    exchange.entry.leave(now_s)
    return spent


def _delivered_tokens(exchange: "Exchange", attempt: "Attempt") -> int:
    """Of a stream, an event a token, but for the one with which a chat begins: it has a role and no text."""
    output = exchange.admitted.route.output
    begins_with_role = output is not None and output.prompt == "messages"
    return max(0, attempt.events - int(begins_with_role)) if exchange.begun else 0


def _spent(exchange: "Exchange", attempt: "Attempt", fleet: "FleetView") -> Spent:
    """Nothing where no engine has worked: it was never reached, or refused."""
    timeline, usage = exchange.timeline, exchange.usage
    if usage is None and not exchange.begun:
        return _NOTHING
    replica = attempt.replica
    if usage is not None:
        prompt_tokens, uncached_tokens = usage.prompt_tokens, usage.prompt_tokens - usage.cached_tokens
        output_tokens = usage.completion_tokens
    else:
        prompt_tokens = uncached_tokens = exchange.admitted.features.prompt_tokens
        output_tokens = _delivered_tokens(exchange, attempt)
    served_s = max(0.0, timeline.ended_s - timeline.connected_s)
    prefill_s = timeline.first_token_s - timeline.connected_s
    if not exchange.admitted.stream:  # its first token was not seen
        prefill_s = min(served_s, uncached_tokens * replica.prefill_ms_per_token / 1000.0)
    prefill_s = max(0.0, prefill_s)
    decode_s = max(0.0, served_s - prefill_s)
    latest = fleet.replica(replica.id) or replica
    batch = (replica.running + 1 + max(1, latest.running)) / 2.0
    return Spent(
        kv_token_seconds(prompt_tokens, output_tokens, prefill_s, decode_s),
        gpu_seconds(uncached_tokens, replica.prefill_ms_per_token, decode_s, batch),
    )
