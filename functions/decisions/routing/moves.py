"""Move of a conversation: what staying at its home must cost before it goes to another replica.

The least score decides where requests go that nothing binds. Scores lag, and noise decides among them: a heartbeat that
caught three prompts in the instant before the step that takes them says that three wait; a newcomer is as fast as
nobody has measured yet. Whoever is moved for that pays with all of its prompt, and those behind it. So a turn whose
home has HELD_FROM_MS more of its prompt than the other, and has not its share of the load (`choice`), leaves only where

    stays > MOVE_RATIO x moves + SESSION_CREDIT_MS

    stays = tokens ahead x prefill_ms + strangers that wait x min(service_ms, prompt x prefill_ms)
            + outstanding x service_ms / CROWD + (prompt - cached) x prefill_ms + reload + refusals
    moves = the same at the other, a token at the pool's median prefill_ms where its own seems less

What is computed again within less is not worth a hold: where prompts are short, the least score is right on the whole
(eight runs of the LoRA trace at 0.6 to 0.85 of capacity, p99 to first token against no hold at all: 1.03 times with
each turn held, 1.00 with those of 100 ms and more).

`prediction` takes each stranger that waits for one that waits until another has ended (`service_ms`); where few run,
that is most of an answer, and it has a slot with the next step. The pool's median is of what was measured: who tells
the rates that agents begin with has measured nothing.
Worked example (test_a_glimpse_of_prompts_that_wait_moves_no_conversation): 1,500 tokens, 1,400 of them cached at the
home, where 1 runs and 3 wait, at 400 ms between two ends and 0.2 ms a token. It stays for 3 x 300 + 80 + 20 =
1,000 ms. The newcomer tells 0.5 ms a token and has nothing: 750, and 1,000 is less than 1.5 x 750 + 50.
With 20,000 tokens of ours ahead of it the home would take 4,080 + 920 ms, and it moves.

Neighbours: `choice` asks once the least score is another's; the trace has what was compared (`request.Moved`).
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

MOVE_RATIO = 1.5  # predictions are off by as much
HELD_FROM_MS = 100.0  # of prefill that a move repeats
_NOT_MEASURED = EngineRates()


class Move(NamedTuple):
    """One that the scores speak for."""

    request: RouteRequest
    home: ReplicaView
    other: ReplicaView
    load: OwnLoad
    kept: float


def pays(move: Move, rows: Sequence[Row], penalties_ms: Mapping[ReplicaId, float]) -> bool:
    """Whether the turn is to leave its home for the other; `rows` are all that were looked at."""
    home, other = move.home, move.other
    rate_ms = max(other.prefill_ms_per_token, _measured_ms(rows))
    if (_cached_tokens(move, home) - _cached_tokens(move, other)) * rate_ms < HELD_FROM_MS:
        return True
    stays_ms = _wait_ms(move, home, home.prefill_ms_per_token) + penalties_ms.get(home.id, 0.0)
    moves_ms = _wait_ms(move, other, rate_ms) + penalties_ms.get(other.id, 0.0)
    return stays_ms > MOVE_RATIO * moves_ms + SESSION_CREDIT_MS


def compared(move: Move, state: HomeState, penalties_ms: Mapping[ReplicaId, float]) -> Moved:
    """What an operator is told of a conversation that was moved."""
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
    if replica.kv_usage_ratio < KV_FULL_RATIO:  # else they wait for an end, and so do we
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
    """Milliseconds a token in the pool, of those who have measured it; 0: nobody has."""
    start = (_NOT_MEASURED.service_ms, _NOT_MEASURED.prefill_ms_per_token)
    measured = [row[4] for row in rows if (row[3], row[4]) != start]
    return median_high(measured) if measured else 0.0
