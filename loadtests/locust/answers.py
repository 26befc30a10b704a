"""Check and time an answer: the lines of a stream, or a whole body. Pure functions; times are arguments.

A stream's first token is its first event with text or a part of a tool call; an event that has only a role is none. A
gap is the time between two such events, even if an engine puts several tokens into one event. An answer counts as
failed if it has no `[DONE]`, no token, an error event, or another model than the request.
"""

import json
from dataclasses import dataclass, field
from typing import Any

MOST_EVENTS = 100_000  # per stream; requests ask for far fewer tokens
_DONE = b"[DONE]"


class WrongAnswer(Exception):
    """A response with status 200 that does not answer the request; the text names one of a few kinds."""


@dataclass(slots=True)
class Stream:
    """One streamed answer to a request for `model` that was sent at `sent_s`; fed line by line."""

    model: str | None  # None accepts any model, because the gateway announced another one
    sent_s: float
    first_token_s: float | None = None  # since sent_s
    gaps_s: list[float] = field(default_factory=list)
    tokens: int = 0  # the engine's count, or else the number of events
    text: list[str] = field(default_factory=list)
    _last_s: float = 0.0
    _done: bool = False

    def line(self, line: bytes, at_s: float) -> None:
        """Read one line; raise WrongAnswer. Comments, event names and empty lines are ignored."""
        if not line.startswith(b"data:"):
            return
        data = line[5:].strip()
        if data == _DONE:
            self._done = True
            return
        try:
            event = json.loads(data)
        except ValueError:
            raise WrongAnswer("an event that is no JSON") from None
        check_model(event, self.model)
        if text := _text_of(event):
            self._token(text, at_s)
        usage = event.get("usage")
        if isinstance(usage, dict) and usage.get("completion_tokens"):
            self.tokens = int(usage["completion_tokens"])

    def end(self) -> None:
        """Finish the stream; raise WrongAnswer if the answer is incomplete."""
        if not self._done:
            raise WrongAnswer("the stream ended without [DONE]")
        if self.first_token_s is None:
            raise WrongAnswer("the stream had no token")

    def _token(self, text: str, at_s: float) -> None:
        if self.first_token_s is None:
            self.first_token_s = at_s - self.sent_s
        elif len(self.gaps_s) >= MOST_EVENTS:
            raise WrongAnswer(f"more than {MOST_EVENTS} events")
        else:
            self.gaps_s.append(at_s - self._last_s)
        self._last_s = at_s
        self.text.append(text)
        self.tokens = max(self.tokens, len(self.gaps_s) + 1)


def whole(body: bytes, model: str | None) -> dict[str, Any]:
    """Return an unstreamed answer, parsed; raise WrongAnswer."""
    try:
        answer = json.loads(body)
    except ValueError:
        raise WrongAnswer("a body that is no JSON") from None
    check_model(answer, model)
    return dict(answer)


def check_model(answer: Any, model: str | None) -> None:
    if not isinstance(answer, dict):
        raise WrongAnswer("JSON that is no object")
    if "error" in answer:
        raise WrongAnswer(f"an error event: {error_code(answer)}")
    if model is not None and answer.get("model") != model:
        raise WrongAnswer("answered by a model that was not asked for")


def error_code(answer: Any) -> str:
    """Return the code of an error body, at most 40 characters. Messages are not used: each could be different."""
    error = answer.get("error") if isinstance(answer, dict) else None
    code = error.get("code") or error.get("type") if isinstance(error, dict) else None
    return str(code)[:40] if code else "without a code"


def text_of_whole(answer: dict[str, Any]) -> str:
    """Return the assistant's text, with which the conversation continues."""
    message = (answer.get("choices") or [{}])[0].get("message") or {}
    return str(message.get("content") or "")


def tokens_of(answer: dict[str, Any]) -> int:
    return int((answer.get("usage") or {}).get("completion_tokens") or 0)


def _text_of(event: dict[str, Any]) -> str:
    """Return text, reasoning or parts of tool calls of a chat or completions event, or "" if there is none."""
    found = []
    for choice in event.get("choices") or []:
        delta = choice.get("delta") or {}
        found += [choice.get("text"), delta.get("content"), delta.get("reasoning_content"), delta.get("reasoning")]
        found += [json.dumps(call) for call in delta.get("tool_calls") or []]
    return "".join(text for text in found if isinstance(text, str))
