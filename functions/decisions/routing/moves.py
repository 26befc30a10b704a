"""Move of a conversation: how much slower its home must be before it goes to another replica.

The least score decides for requests without a home. Scores lag, and noise decides between close ones. For example, a
heartbeat sent just before an engine step reports three waiting prompts which that step admits, and a new replica has no
measured speed yet. A conversation that moves because of noise pays with its whole prompt, and so do the requests behind
it. So a turn stays at its home if a move would repeat HELD_FROM_MS or more of its prefill and the home is below its
share of the load (`choice`), unless

    stays > MOVE_RATIO x moves + SESSION_CREDIT_MS

    stays = tokens ahead x prefill_ms + strangers that wait x min(service_ms, prompt x prefill_ms)
            + outstanding x service_ms / CROWD + (prompt - cached) x prefill_ms + reload + refusals
    moves = the same at the other, a token at the pool's median prefill_ms if its own seems less

A shorter prefill is not worth holding the turn: for short prompts the least score is right on the whole (eight runs of
the LoRA trace at 0.6 to 0.85 of capacity, p99 to first token against no hold at all: 1.03 times with each turn held,
1.00 with those of 100 ms and more).

`prediction` assumes that each waiting stranger waits until another request has ended (`service_ms`). If few run, that
is most of an answer, although the stranger gets a slot with the next step; hence the minimum above. The pool's median
is over measured rates only: a replica that reports an agent's initial rates has measured nothing.
Worked example (test_momentary_queue_moves_no_conversation): 1,500 tokens, 1,400 of them cached at the
home, where 1 runs and 3 wait, at 400 ms between two ends and 0.2 ms a token. It stays for 3 x 300 + 80 + 20 =
1,000 ms. The new replica reports 0.5 ms a token and has nothing: 750, and 1,000 is less than 1.5 x 750 + 50.
With 20,000 tokens of ours ahead of it the home would need 4,080 + 920 ms, and the turn moves.

Neighbours: `choice` calls this if the least score is another replica's; the trace records the result (`request.Moved`).
"""

from collections.abc import Mapping, Sequence
from statistics import median_high
from typing import NamedTuple

from functions.api.ids import ReplicaId
from functions.decisions.health.engine_rates import EngineRates
from functions.decisions.routing.crowding import CROWD
from functions.decisions.routing.own_load import OwnLoad
from functions.decisions.routing.prediction import KV_FULL_RATIO, SESSION_CREDIT_MS, predict, score_ms
from functions.decisions.routing.replicas import ReplicaView, Row
from functions.decisions.routing.request import HomeState, Moved, RouteRequest

MOVE_RATIO = 1.5  # typical error of predictions
HELD_FROM_MS = 100.0  # prefill repeated by a move
_NOT_MEASURED = EngineRates()


class Move(NamedTuple):
    """A possible move of a conversation: the home, and the replica with the least score."""

    request: RouteRequest
    home: ReplicaView
    other: ReplicaView
    load: OwnLoad
    kept: float


def pays(move: Move, rows: Sequence[Row], penalties_ms: Mapping[ReplicaId, float]) -> bool:
    """Return True if the turn should leave its home for the other replica: the home has little more of its prompt
    cached, or its wait is clearly longer. `rows` are all candidates."""
    home, other = move.home, move.other
    rate_ms = max(other.prefill_ms_per_token, _measured_ms(rows))
    if (_cached_tokens(move, home) - _cached_tokens(move, other)) * rate_ms < HELD_FROM_MS:
        return True
    stays_ms = _wait_ms(move, home, home.prefill_ms_per_token) + penalties_ms.get(home.id, 0.0)
    moves_ms = _wait_ms(move, other, rate_ms) + penalties_ms.get(other.id, 0.0)
    return stays_ms > MOVE_RATIO * moves_ms + SESSION_CREDIT_MS


def compared(move: Move, state: HomeState, penalties_ms: Mapping[ReplicaId, float]) -> Moved:
    """Return the figures of a moved conversation for the request's trace: of its home, and the score of the replica
    chosen."""
    request, home, other, load, kept = move
    return Moved(
        home.id,
        state,
        predict(request, home, load).total_ms + penalties_ms.get(home.id, 0.0),
        score_ms(request, home, load, kept, penalties_ms),
        score_ms(request, other, load, kept, penalties_ms),
    )


def _wait_ms(move: Move, replica: ReplicaView, rate_ms: float) -> float:
    request, load, kept = move.request, move.load, move.kept
    own, prompt_tokens = load.in_flight.get(replica.id, 0), request.prompt_tokens
    outstanding = max(replica.running + replica.waiting, own)
    strangers, stranger_ms = replica.waiting, replica.service_ms
    if replica.kv_usage_ratio < KV_FULL_RATIO:  # at a full cache, they and we wait for a request to end
        strangers = min(replica.waiting, outstanding - own)
        stranger_ms = min(stranger_ms, prompt_tokens * rate_ms)
    cached_tokens = _cached_tokens(move, replica)
    reload_tokens = min(cached_tokens, request.reload_tokens.get(replica.id, 0))
    tokens = load.ahead_tokens.get(replica.id, 0) + prompt_tokens - kept * cached_tokens
    queue_ms = strangers * stranger_ms + outstanding * replica.service_ms / CROWD
    return tokens * rate_ms + queue_ms + kept * reload_tokens * replica.reload_ms_per_token


def _cached_tokens(move: Move, replica: ReplicaView) -> int:
    return min(move.request.prompt_tokens, move.request.cached_tokens.get(replica.id, 0))


def _measured_ms(rows: Sequence[Row]) -> float:
    """Return the median milliseconds per token over the replicas that have measured it, or 0 if none has."""
    start = (_NOT_MEASURED.service_ms, _NOT_MEASURED.prefill_ms_per_token)
    measured = [row[4] for row in rows if (row[3], row[4]) != start]
    return median_high(measured) if measured else 0.0
