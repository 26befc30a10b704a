"""Cascade judge: hold back a small model's answer until its first tokens show how certain the model is.

The request to the small model includes log probabilities. A `CascadeJudge` sits between the attempt and the exchange
while it reads them. The exchange sees nothing of an answer that is dropped. It sees a kept answer exactly as without
a cascade: the log probabilities are removed.

    judging --(enough tokens, or the end)--> kept: passed on       entropy <= threshold, or no larger pool can serve
                                         |-> unjudged: passed on   there are no log probabilities
                                         `-> escalated: dropped, and the larger pool answers

The held-back bytes are limited by the policy's sample and by `_HELD_MAX_BYTES`. A cascade does not apply to requests
that ask for log probabilities or several answers themselves, nor to routes without log probabilities.

A tenant pays for both answers if the larger model was used, as its policy requests. The small model therefore reports
usage with each event (vLLM's `continuous_usage_stats`). If the small model answers after all, its answer is paid for
once.

`functions.decisions.routing.cascade` measures, `fallback.in_pool` rewrites the request, and `exchange` sends it.
"""

from typing import Any, Literal, Protocol

import msgspec
import orjson

from functions.api.snapshot import CascadeEntry
from functions.decisions.catalogue import Catalogue
from functions.decisions.routing import cascade as decisions
from functions.decisions.routing.retry import AttemptFailure
from functions.gateway import errors
from functions.gateway.errors import ErrorAnswer
from functions.gateway.intake.routes import CHAT, COMPLETIONS
from functions.gateway.request.answers import BadAnswer, Usage, WholeAnswer, usage_in
from functions.gateway.request.attempt import Attempt, Owner
from functions.gateway.request.request import Admitted, CascadeOutcome
from functions.gateway.routing import fallback

_HELD_MAX_BYTES = 512 * 1024
_EVENT_END = b"\n\n"
_DATA = b"data: "
_LOGPROBS = b'"logprobs":{'
_USAGE = b'"usage":{'

Verdict = Literal["judging", "kept", "escalated", "unjudged"]


class Judged(Owner, Protocol):
    """The part of an exchange that its judge calls."""

    def attempt_held(self, attempt: Attempt) -> float:
        """Record that the attempt's first token has come and is held back. Return the time in monotonic seconds."""

    def escalate(self, judge: "CascadeJudge", attempt: Attempt) -> bool:
        """Move to the larger pool and return True if that is possible; the attempt is then dropped."""


def judge_for(exchange: Judged, catalogue: Catalogue, admitted: Admitted) -> "CascadeJudge | None":
    """Return the judge of a request whose pool has a larger one behind it, or None if no cascade applies.

    The judge's request asks for log probabilities.
    """
    model = admitted.model
    tier = catalogue.tenants[admitted.caller.tenant].tier
    step = decisions.step_for(admitted.routing.cascade, model.pool, tier)
    if step is None or admitted.continuous_usage or admitted.route not in (CHAT, COMPLETIONS):
        return None
    parsed = orjson.loads(admitted.upstream_body)
    if not _may_be_judged(parsed):
        return None
    larger = fallback.in_pool(catalogue, admitted, step.target_pool)
    if larger is None:
        return None
    if admitted.route is CHAT:
        parsed |= {"logprobs": True, "top_logprobs": decisions.TOP_LOGPROBS}
    else:
        parsed["logprobs"] = decisions.TOP_LOGPROBS
    asking = msgspec.structs.replace(admitted, upstream_body=orjson.dumps(parsed), continuous_usage=admitted.stream)
    return CascadeJudge(exchange, step, plain=admitted, asking=asking, larger=larger)


def _may_be_judged(parsed: dict[str, Any]) -> bool:
    """Return True if the request gets a single answer, without echo, and asks for no log probabilities itself."""
    options = [parsed.get(name) for name in ("logprobs", "top_logprobs", "prompt_logprobs")]
    asks_itself = any(each is not None and each is not False for each in options)  # 0 requests them too
    prompt = parsed.get("prompt")
    is_one = type(prompt) is not list or type(prompt[0]) is int or len(prompt) == 1
    several = max(parsed.get("n") or 1, parsed.get("best_of") or 1) > 1
    return is_one and not (asks_itself or several or parsed.get("echo"))


class CascadeJudge:
    """Owner of the small model's attempts. Its findings remain available for the trace."""

    __slots__ = (
        "_entropies", "_exchange", "_held", "_held_bytes", "_step", "asking", "entropy_nats", "first_token_s", "larger",
        "plain", "usage", "verdict",
    )  # fmt: skip

    def __init__(
        self, exchange: Judged, step: CascadeEntry, *, plain: Admitted, asking: Admitted, larger: Admitted
    ) -> None:
        self._exchange = exchange
        self._step = step
        self.plain, self.asking, self.larger = plain, asking, larger
        self.verdict: Verdict = "judging"
        self.entropy_nats: float | None = None  # entropy in nats
        self.first_token_s = 0.0  # monotonic; 0: no first token was seen
        self.usage: Usage | None = None  # usage of the judged answer that the engine has reported so far
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._entropies: list[float] = []

    def request_changed(self, other: Admitted) -> None:
        """Switch to another version of the small model. `other` is `asking` rewritten for it."""
        parsed = orjson.loads(self.plain.upstream_body)
        parsed["model"] = other.model.engine_name
        self.plain = msgspec.structs.replace(other, upstream_body=orjson.dumps(parsed), continuous_usage=False)
        self.asking = other

    def let_go_of_bodies(self) -> None:
        """Drop the bodies of all its requests, because an answer has begun."""
        for each in (self.plain, self.asking, self.larger):
            each.let_go_of_body()

    @property
    def counted_tokens(self) -> int:
        """Number of tokens of the answer whose entropies were seen so far, for engines that report no usage."""
        return len(self._entropies)

    def outcome(self) -> CascadeOutcome:
        """Return the outcome, with the notes for the trace from which operators choose thresholds."""
        source, target, usage = self._step.source_pool, self._step.target_pool, self.usage
        notes = {
            "from": source,
            "to": target,
            "verdict": self.verdict,
            "doubt_nats": None if self.entropy_nats is None else round(self.entropy_nats, 4),
            "threshold_nats": self._step.threshold_nats,
            "prompt_tokens": usage.prompt_tokens if usage is not None else None,
            "completion_tokens": usage.completion_tokens if usage is not None else None,
        }
        return CascadeOutcome(source, target, self.verdict, notes)

    # reports of the attempt: the judge is its Owner

    def attempt_began(self, attempt: Attempt, first: bytes) -> None:
        self._reset()
        self.first_token_s = self._exchange.attempt_held(attempt)
        self.attempt_streamed(attempt, first)

    def attempt_streamed(self, attempt: Attempt, out: bytes) -> None:
        try:
            if self.verdict == "judging":
                self._hold(attempt, out)
            else:
                self._exchange.attempt_streamed(attempt, without_figures(out))
        except BadAnswer as error:
            attempt.drop()
            self.attempt_broke(attempt, errors.upstream_lost(), AttemptFailure.BAD_ANSWER, str(error))

    def attempt_finished(self, attempt: Attempt) -> None:
        if self.verdict == "judging":
            self._judge(attempt)
        if self.verdict != "escalated":
            self._exchange.attempt_finished(attempt)

    def attempt_answered(self, attempt: Attempt, answer: WholeAnswer) -> None:
        document = orjson.loads(answer.body)
        self._entropies, self.usage = _entropies_in(document), answer.usage
        if self._is_kept(attempt):
            _strip(document)
            kept = WholeAnswer(orjson.dumps(document), answer.usage, aborted=False)
            self._exchange.attempt_answered(attempt, kept)

    def attempt_refused(self, attempt: Attempt, answer: ErrorAnswer) -> None:
        self._exchange.attempt_refused(attempt, answer)

    def attempt_failed(self, attempt: Attempt, failure: AttemptFailure, detail: str) -> None:
        self._exchange.attempt_failed(attempt, failure, detail)

    def attempt_broke(self, attempt: Attempt, answer: ErrorAnswer, failure: AttemptFailure, detail: str) -> None:
        if self.verdict == "judging":  # nothing was passed on
            self._exchange.attempt_failed(attempt, failure, detail)
        else:
            self._exchange.attempt_broke(attempt, answer, failure, detail)

    # internals

    def _reset(self) -> None:
        self._held, self._held_bytes, self._entropies, self.usage = [], 0, [], None

    def _hold(self, attempt: Attempt, out: bytes) -> None:
        entropies, usage = figures(out)
        self._held.append(out)
        self._held_bytes += len(out)
        self._entropies += entropies
        self.usage = usage or self.usage
        if len(self._entropies) >= self._step.sample_tokens or self._held_bytes > _HELD_MAX_BYTES:
            self._judge(attempt)

    def _judge(self, attempt: Attempt) -> None:
        """Pass on what was held back of a stream if the small model's answer is kept, else drop it."""
        held, self._held = self._held, []
        if self._is_kept(attempt):
            self._exchange.attempt_began(attempt, without_figures(b"".join(held)))

    def _is_kept(self, attempt: Attempt) -> bool:
        step = self._step
        self.entropy_nats = decisions.answer_entropy(self._entropies[: step.sample_tokens], step.measure)
        if self.entropy_nats is None:
            self.verdict = "unjudged"
        elif self.entropy_nats <= step.threshold_nats or not self._exchange.escalate(self, attempt):
            self.verdict = "kept"
        else:
            self.verdict = "escalated"
        return self.verdict != "escalated"


def figures(events: bytes) -> tuple[list[float], Usage | None]:
    """Return the entropies of the tokens in whole events, in order, and the last usage of the engine."""
    found: list[float] = []
    usage: Usage | None = None
    for event in events.split(_EVENT_END):
        if event.startswith(_DATA) and (_LOGPROBS in event or _USAGE in event):
            document = _parsed(event)
            found += _entropies_in(document)
            usage = usage_in(document.get("usage")) or usage
    return found, usage


def without_figures(events: bytes) -> bytes:
    """Return the events as they would be if no log probabilities and no usage per event had been requested."""
    passed = []
    for event in events.split(_EVENT_END):
        if event.startswith(_DATA) and (_LOGPROBS in event or _USAGE in event):
            document = _parsed(event)
            if document.get("choices"):  # else it is the final usage, which passes if the caller requested it
                document.pop("usage", None)
            _strip(document)
            passed.append(_DATA + orjson.dumps(document))
        else:
            passed.append(event)
    return _EVENT_END.join(passed)


def _parsed(event: bytes) -> dict[str, Any]:
    """Return the JSON object of an event. Raise BadAnswer if it is none."""
    try:
        document = orjson.loads(event[len(_DATA) :])
    except orjson.JSONDecodeError as error:
        raise BadAnswer("an event that is not JSON") from error
    if type(document) is not dict:
        raise BadAnswer("an event that is no JSON object")
    return document


def _entropies_in(document: dict[str, Any]) -> list[float]:
    """Return the entropies (nats) of the first choice's tokens from their log probabilities; ignore malformed parts."""
    choices = document.get("choices")
    logprobs = choices[0].get("logprobs") if type(choices) is list and choices and type(choices[0]) is dict else None
    if type(logprobs) is not dict:
        return []
    content, top_logprobs = logprobs.get("content"), logprobs.get("top_logprobs")
    ranked: list[list[Any]] = []
    if type(content) is list:
        tokens = [entry.get("top_logprobs") for entry in content if type(entry) is dict]
        ranked = [[one.get("logprob") for one in top if type(one) is dict] for top in tokens if type(top) is list]
    elif type(top_logprobs) is list:
        ranked = [list(top.values()) for top in top_logprobs if type(top) is dict]
    numbers = [[one for one in top if type(one) in (int, float)] for top in ranked]
    return [decisions.token_entropy(top) for top in numbers if top]


def _strip(document: dict[str, Any]) -> None:
    choices = document.get("choices")
    for choice in choices if type(choices) is list else ():
        if type(choice) is dict:
            choice["logprobs"] = None
