"""A small model's answer under judgement: held back until its first tokens have shown whether it was sure of itself.

The small model is asked for log probabilities beside its answer. A `Trial` stands between the attempt and the exchange
while these are read; the exchange sees nothing of an answer that is not kept, and of one that is kept exactly what it
would have seen without a cascade: the log probabilities are taken out again.

    judging --(sampled enough, or the end)--> kept: passed on       doubt <= threshold, or nobody is there to ask
                                          |-> unjudged: passed on   there are no log probabilities
                                          `-> escalated: dropped, the larger pool is asked

What is held is bounded: by the policy's sample, and by `_HELD_MAX_BYTES`. Not every request is tried: not one that asks
for log probabilities itself, nor for several answers, nor on a route whose answers have none.

Neighbours: `functions.decisions.cascade` measures; `fallback.in_pool` rewrites the request; `exchange` goes there.
"""

from typing import Any, Literal, Protocol

import msgspec
import orjson

from functions.api.ids import PoolName
from functions.api.snapshot import CascadeEntry
from functions.decisions import cascade as decisions
from functions.decisions.catalogue import Catalogue
from functions.decisions.retry import Failure
from functions.gateway import fallback
from functions.gateway.attempt import Attempt
from functions.gateway.errors import ErrorAnswer
from functions.gateway.intake import Admitted
from functions.gateway.relay import WholeAnswer
from functions.gateway.routes import CHAT, COMPLETIONS

_HELD_MAX_BYTES = 512 * 1024
_EVENT_END = b"\n\n"
_DATA = b"data: "

Verdict = Literal["judging", "kept", "escalated", "unjudged"]


class Judged(Protocol):
    """The exchange, as a trial sees it."""

    def attempt_began(self, attempt: Attempt, first: bytes) -> None: ...
    def attempt_streamed(self, attempt: Attempt, out: bytes) -> None: ...
    def attempt_finished(self, attempt: Attempt) -> None: ...
    def attempt_answered(self, attempt: Attempt, answer: WholeAnswer) -> None: ...
    def attempt_refused(self, attempt: Attempt, answer: ErrorAnswer) -> None: ...
    def attempt_failed(self, attempt: Attempt, failure: Failure, detail: str) -> None: ...
    def attempt_broke(self, attempt: Attempt, answer: ErrorAnswer, failure: Failure, detail: str) -> None: ...

    def escalate(self, larger: Admitted) -> bool:
        """Ask the larger pool instead, and say whether it will be; the attempt is dropped then."""


def trial_for(exchange: Judged, catalogue: Catalogue, admitted: Admitted) -> "Trial | None":
    """The trial of a request for a pool with a larger one behind it; None where there is nothing to try."""
    model = admitted.model
    tier = catalogue.tenants[admitted.caller.tenant].tier
    step = decisions.step_for(admitted.routing.cascade, model.pool, tier)
    if step is None or admitted.route not in (CHAT, COMPLETIONS):
        return None
    parsed = orjson.loads(admitted.upstream_body)
    if parsed.get("logprobs") or parsed.get("top_logprobs") or (parsed.get("n") or 1) > 1:
        return None
    larger = fallback.in_pool(catalogue, admitted, step.target_pool)
    if larger is None:
        return None
    if admitted.route is CHAT:
        parsed |= {"logprobs": True, "top_logprobs": decisions.TOP_LOGPROBS}
    else:
        parsed["logprobs"] = decisions.TOP_LOGPROBS
    asking = msgspec.structs.replace(admitted, upstream_body=orjson.dumps(parsed))
    return Trial(exchange, step, plain=admitted, asking=asking, larger=larger)


class Trial:
    """Owner of the small model's attempts; what it learnt stays for the trace."""

    __slots__ = (
        "_entropies",
        "_exchange",
        "_held",
        "_held_bytes",
        "_step",
        "asking",
        "doubt",
        "larger",
        "plain",
        "verdict",
    )

    def __init__(
        self, exchange: Judged, step: CascadeEntry, *, plain: Admitted, asking: Admitted, larger: Admitted
    ) -> None:
        self._exchange = exchange
        self._step = step
        self.plain, self.asking, self.larger = plain, asking, larger
        self.verdict: Verdict = "judging"
        self.doubt: float | None = None  # nats
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._entropies: list[float] = []

    def explain(self) -> dict[str, Any]:
        """For the request's trace: from these rows thresholds are chosen."""
        return {
            "from": self._step.source_pool,
            "to": self._step.target_pool,
            "verdict": self.verdict,
            "doubt_nats": None if self.doubt is None else round(self.doubt, 4),
            "threshold_nats": self._step.threshold_nats,
        }

    def outcome(self) -> tuple[PoolName, PoolName, Verdict]:
        """From which pool, to which, and what became of it: metric labels."""
        return self._step.source_pool, self._step.target_pool, self.verdict

    # what the attempt says: this is its Owner

    def attempt_began(self, attempt: Attempt, first: bytes) -> None:
        self._reset()
        self.attempt_streamed(attempt, first)

    def attempt_streamed(self, attempt: Attempt, out: bytes) -> None:
        if self.verdict != "judging":
            self._exchange.attempt_streamed(attempt, without_logprobs(out))
            return
        self._held.append(out)
        self._held_bytes += len(out)
        self._entropies += stream_entropies(out)
        if len(self._entropies) >= self._step.sample_tokens or self._held_bytes > _HELD_MAX_BYTES:
            self._judge(attempt)

    def attempt_finished(self, attempt: Attempt) -> None:
        if self.verdict == "judging":
            self._judge(attempt)
        if self.verdict != "escalated":
            self._exchange.attempt_finished(attempt)

    def attempt_answered(self, attempt: Attempt, answer: WholeAnswer) -> None:
        document = orjson.loads(answer.body)
        self._entropies = _entropies_in(document)
        if self._is_kept():
            _strip(document)
            kept = WholeAnswer(orjson.dumps(document), answer.usage, aborted=False)
            self._exchange.attempt_answered(attempt, kept)

    def attempt_refused(self, attempt: Attempt, answer: ErrorAnswer) -> None:
        self._exchange.attempt_refused(attempt, answer)

    def attempt_failed(self, attempt: Attempt, failure: Failure, detail: str) -> None:
        self._exchange.attempt_failed(attempt, failure, detail)

    def attempt_broke(self, attempt: Attempt, answer: ErrorAnswer, failure: Failure, detail: str) -> None:
        if self.verdict == "judging":  # nothing of it was passed on
            self._exchange.attempt_failed(attempt, failure, detail)
        else:
            self._exchange.attempt_broke(attempt, answer, failure, detail)

    # inside

    def _reset(self) -> None:
        self._held, self._held_bytes, self._entropies = [], 0, []

    def _judge(self, attempt: Attempt) -> None:
        """Of a stream: pass on what was held, or drop it."""
        held, self._held = self._held, []
        if self._is_kept():
            self._exchange.attempt_began(attempt, without_logprobs(b"".join(held)))

    def _is_kept(self) -> bool:
        step = self._step
        self.doubt = decisions.doubt(self._entropies[: step.sample_tokens], step.measure)
        if self.doubt is None:
            self.verdict = "unjudged"
        elif self.doubt <= step.threshold_nats or not self._exchange.escalate(self.larger):
            self.verdict = "kept"
        else:
            self.verdict = "escalated"
        return self.verdict != "escalated"


def stream_entropies(events: bytes) -> list[float]:
    """Of the tokens in whole events, in order."""
    found: list[float] = []
    for event in events.split(_EVENT_END):
        if b'"logprobs"' in event and event.startswith(_DATA):
            found += _entropies_in(orjson.loads(event[len(_DATA) :]))
    return found


def without_logprobs(events: bytes) -> bytes:
    """The same events as they are where nobody asked for log probabilities."""
    passed = []
    for event in events.split(_EVENT_END):
        if b'"logprobs":{' in event and event.startswith(_DATA):
            document = orjson.loads(event[len(_DATA) :])
            _strip(document)
            passed.append(_DATA + orjson.dumps(document))
        else:
            passed.append(event)
    return _EVENT_END.join(passed)


def _entropies_in(document: dict[str, Any]) -> list[float]:
    """Of the first choice; what is not as it should be counts for nothing."""
    choices = document.get("choices")
    logprobs = choices[0].get("logprobs") if type(choices) is list and choices and type(choices[0]) is dict else None
    if type(logprobs) is not dict:
        return []
    content = logprobs.get("content")
    if type(content) is list:
        tokens = [entry.get("top_logprobs") for entry in content if type(entry) is dict]
        ranked = [[one.get("logprob") for one in top] for top in tokens if type(top) is list]
    else:
        ranked = [list(top.values()) for top in logprobs.get("top_logprobs") or () if type(top) is dict]
    numbers = [[one for one in top if type(one) in (int, float)] for top in ranked]
    return [decisions.token_entropy(top) for top in numbers if top]


def _strip(document: dict[str, Any]) -> None:
    for choice in document.get("choices") or ():
        choice["logprobs"] = None
