"""Prediction of a request's milliseconds to first token at a replica, and the score made from it.

All terms have one unit, milliseconds to first token, so that each can be measured and compared:

    predicted = queue + prefill + reload + adapter
    queue     = tokens ahead x prefill_ms  +  strangers that wait x service_ms  +  outstanding x service_ms / CROWD
    prefill   = (prompt - cached) x prefill_ms
    reload    = cached tokens that are in host memory only x reload_ms
    crowding  = (tokens ahead + prompt - (1 + BEHIND) x cached, if positive) x prefill_ms x outstanding / CROWD
    score     = predicted + crowding - BEHIND x cached x prefill_ms - session's credit + zone's and refusals' penalties

The replica with the least score answers. Tokens ahead are this gateway's own (`own_load`). Strangers are the requests
that the heartbeat counts beyond those: requests of other gateways, of which only the number is known. If the KV cache
is full, all waiting requests count. `outstanding` is the larger of the heartbeat's count and our own. Running requests
cost a new one little, a share of the step. Cached tokens need not be computed, which also saves the time of requests
behind: hence BEHIND. Crowding is the delay that a prompt causes for running requests: each waits for its next token
while the prompt is read. So the longest prompts go where the fewest requests run, and clients that send them often end
up with a replica almost to themselves.
Worked example (test_worked_example_from_the_prologue): A runs 20 at 40 ms between two ends, and 1,000 tokens of ours
wait there; B runs 10, nothing waits. Both compute a token in 0.5 ms. For a prompt of 800 tokens, 600 of which are
cached on A, A is predicted at 500 + 20 x 40 / 20 + 200 x 0.5 = 640 ms, B at 10 x 40 / 20 + 800 x 0.5 = 420. But the 600
tokens save those behind 2 x 300 ms: A's score is 40, B's with the 10 that run there 620, and A answers. With 3,000
tokens ahead it would be B.

Tokens that an engine has moved to host memory need not be computed either, and requests behind save as much, because
the copy runs in parallel to the steps. The request itself waits for the copy. Worked example
(test_a_host_hit_costs_its_reload): of a prompt of 800 tokens 600 are in B's host memory, at 0.02 ms a token; nothing
waits anywhere, and both compute a token in 0.5 ms. B is predicted at 200 x 0.5 + 600 x 0.02 = 112 ms, A, which has
nothing, at 400, and C, which has 590 of them on its accelerator, at 105.

Above the policy's utilization a cache attracts less, and at a full pool not at all: only a share kept = (1 - u) / (1 -
spreadAbove) of the cached tokens, and of their reload, counts in the score.

The constants were measured on the Mooncake trace (docs/explanation/routing.md): BEHIND from 0 to 2 changes p99 from 4.8
to 4.6 s and the hit ratio from 0.20 to 0.25; SLACK from 0 to 2 p50 from 400 to 326 ms. More of either gains nothing
there. If conversations repeat two thirds of their prompts, SLACK from 2 to 4 changes p99 from 3.1 to 2.4 s.

Neighbours: `choice` selects the least score; `crowding` has the part that a row stores; `own_load`, `replicas` and
`request` are the inputs.
"""

from collections.abc import Mapping, Sequence
from math import inf

from functions.api.ids import ReplicaId
from functions.decisions.routing.crowding import CROWD
from functions.decisions.routing.own_load import OwnLoad
from functions.decisions.routing.replicas import ReplicaView, Row
from functions.decisions.routing.request import Prediction, RouteReason, RouteRequest

BEHIND = 2.0  # requests that wait for each computed token, on average; a cached token saves their time as well
KV_FULL_RATIO = 0.95  # above it, prompts wait for others to end
SESSION_CREDIT_MS = 50.0  # value of returning to the session's replica besides its cache
FIRST_TURN_CREDIT_MS = 20.0  # value of starting a conversation at its assumed home: no message to other gateways
SESSION_CACHED_RATIO = 0.5  # assumed cached share of a prompt at the session's replica if caches are unknown
CROSS_ZONE_MS = 20.0  # a replica of another zone must be faster by more than this


def predict(
    request: RouteRequest, replica: ReplicaView, load: OwnLoad, reason: RouteReason = "least_predicted_wait"
) -> Prediction:
    """Predict the time to first token at one replica, without credits and penalties. The result records `reason`."""
    own = load.in_flight.get(replica.id, 0)
    reported = replica.running + replica.waiting
    outstanding = max(reported, own)
    strangers = replica.waiting
    if replica.kv_usage_ratio < KV_FULL_RATIO:
        strangers = min(replica.waiting, outstanding - own)
    queue_ms = (
        load.ahead_tokens.get(replica.id, 0) * replica.prefill_ms_per_token
        + (strangers + outstanding / CROWD) * replica.service_ms
    )
    cached_tokens = min(request.prompt_tokens, request.cached_tokens.get(replica.id, 0))
    prefill_ms = (request.prompt_tokens - cached_tokens) * replica.prefill_ms_per_token
    reload_tokens = min(cached_tokens, request.reload_tokens.get(replica.id, 0))
    reload_ms = reload_tokens * replica.reload_ms_per_token
    return Prediction(
        replica,
        outstanding,
        queue_ms,
        prefill_ms,
        cached_tokens,
        0.0,
        reason,
        reload_ms=reload_ms,
        reload_tokens=reload_tokens,
    )


def score_ms(
    request: RouteRequest, replica: ReplicaView, load: OwnLoad, kept: float, penalties_ms: Mapping[ReplicaId, float]
) -> float:
    """Return the score by which replicas are compared: the prediction with crowding, credits and penalties."""
    predicted = predict(request, replica, load)
    spared = kept * (1.0 + BEHIND) * predicted.cached_tokens
    read_tokens = load.ahead_tokens.get(replica.id, 0) + request.prompt_tokens - spared
    score = predicted.total_ms + (predicted.cached_tokens - spared) * replica.prefill_ms_per_token
    score -= (1.0 - kept) * predicted.reload_ms
    score += max(0.0, read_tokens * replica.prefill_ms_per_token) * predicted.outstanding / CROWD
    if replica.id == request.session_replica:
        score -= session_credit_ms(request, replica.prefill_ms_per_token)
    if request.zone and replica.zone != request.zone:
        score += CROSS_ZONE_MS
    return score + penalties_ms.get(replica.id, 0.0)


def session_credit_ms(request: RouteRequest, prefill_ms_per_token: float) -> float:
    """Return the credit in milliseconds of the session's replica. If no caches are known, it includes half of the
    prompt's prefill.

    A new conversation has no cache there.
    """
    if request.is_first_turn:
        return FIRST_TURN_CREDIT_MS
    if request.cached_tokens:
        return SESSION_CREDIT_MS
    return SESSION_CREDIT_MS + SESSION_CACHED_RATIO * request.prompt_tokens * prefill_ms_per_token


def kept_ratio(utilization_ratio: float, spread_above_ratio: float) -> float:
    """Return the share of a cache's attraction that is left at this utilization: 1 up to `spread_above_ratio`, then
    falling to 0 (test_full_pool_spreads_requests)."""
    if utilization_ratio <= spread_above_ratio:
        return 1.0
    return max(0.0, (1.0 - utilization_ratio) / (1.0 - spread_above_ratio))


def least(  # noqa: C901, PLR0912  one loop without calls: each branch is a term of the formula
    request: RouteRequest, rows: Sequence[Row], load: OwnLoad, kept: float, penalties_ms: Mapping[ReplicaId, float]
) -> tuple[list[Row], int]:
    """Return the rows that share the least `score_ms`, and the sum of outstanding requests over all `rows`.

    The formula is repeated here in one loop without calls (test_loop_equals_the_formula), because it runs for every
    request and replica.
    """
    in_flight, ahead_tokens, cached = load.in_flight, load.ahead_tokens, request.cached_tokens
    attraction = (1.0 + BEHIND) * kept
    prompt_tokens, session, zone = request.prompt_tokens, request.session_replica, request.zone
    has_credits, reloads = bool(session or zone or penalties_ms), request.reload_tokens
    least, tied, outstanding_sum = inf, [], 0
    for row in rows:
        replica_id, outstanding, waiting, service_ms, prefill_ms, _, view, token_ms, base_ms = row
        tokens: float = prompt_tokens
        if replica_id in in_flight:  # no `get`, `min` or `line`: without calls it takes a third
            own = in_flight[replica_id]
            tokens += ahead_tokens.get(replica_id, 0)
            if own > outstanding:  # noqa: PLR1730  max() is a call, and 32 of them 2 us
                outstanding = own
            if waiting > outstanding - own and view.kv_usage_ratio < KV_FULL_RATIO:
                waiting = outstanding - own
            crowd = outstanding / CROWD
            token_ms, base_ms = prefill_ms * (1.0 + crowd), (waiting + crowd) * service_ms
        outstanding_sum += outstanding
        if cached and replica_id in cached:
            hit = cached[replica_id]
            if hit > prompt_tokens:  # noqa: PLR1730  as above
                hit = prompt_tokens
            tokens -= attraction * hit
            if reloads and replica_id in reloads:
                moved = reloads[replica_id]
                base_ms += kept * (moved if moved < hit else hit) * view.reload_ms_per_token
            if tokens < 0.0:  # a net saving does not delay the running requests
                token_ms = prefill_ms
        score = tokens * token_ms + base_ms
        if has_credits:
            if replica_id == session:
                score -= session_credit_ms(request, prefill_ms)
            if zone and view.zone != zone:
                score += CROSS_ZONE_MS
            if penalties_ms:
                score += penalties_ms.get(replica_id, 0.0)
        if score < least:
            least, tied = score, [row]
        elif score == least:
            tied.append(row)
    return tied, outstanding_sum
