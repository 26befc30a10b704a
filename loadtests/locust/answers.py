"""What an answer said, and when: the lines of a stream, or a whole body. Pure; the clock's times are arguments.

A stream's first token is its first event with text or a part of a tool call; an event with a role alone is none. A gap
is the time between two such events, also where an engine puts several tokens into one. An answer counts as failed that
is not the whole of what was asked for: without `[DONE]`, without any token, with an error event, or of another model.
"""

import json
from dataclasses import dataclass, field
from typing import Any

MOST_EVENTS = 100_000  # of one stream; a request asks for far fewer tokens
_DONE = b"[DONE]"


class WrongAnswer(Exception):
    """A 200 that is not the answer to what was asked; the text names one of few kinds."""


@dataclass(slots=True)
class Stream:
    """One streamed answer to a request for `model`, sent at `sent_s`; fed line by line."""

    model: str | None  # None: any, where another was announced to answer
    sent_s: float
    first_token_s: float | None = None  # since it was sent
    gaps_s: list[float] = field(default_factory=list)
    tokens: int = 0  # as the engine counted them, else events
    text: list[str] = field(default_factory=list)
    _last_s: float = 0.0
    _done: bool = False

    def line(self, line: bytes, at_s: float) -> None:
        """One line as it came; raises WrongAnswer. Comments, names of events and empty lines say nothing."""
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
        """No more lines come; raises WrongAnswer where the answer is not whole."""
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
    """An unstreamed answer; raises WrongAnswer."""
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
    """Of an error body, at most 40 characters; never its message, of which there are as many as there are requests."""
    error = answer.get("error") if isinstance(answer, dict) else None
    code = error.get("code") or error.get("type") if isinstance(error, dict) else None
    return str(code)[:40] if code else "without a code"


def text_of_whole(answer: dict[str, Any]) -> str:
    """What the assistant said, for the conversation to go on with."""
    message = (answer.get("choices") or [{}])[0].get("message") or {}
    return str(message.get("content") or "")


def tokens_of(answer: dict[str, Any]) -> int:
    return int((answer.get("usage") or {}).get("completion_tokens") or 0)


def _text_of(event: dict[str, Any]) -> str:
    """Text, thoughts or parts of tool calls of an event of chat or completions; "" where it has none."""
    found = []
    for choice in event.get("choices") or []:
        delta = choice.get("delta") or {}
        found += [choice.get("text"), delta.get("content"), delta.get("reasoning_content"), delta.get("reasoning")]
        found += [json.dumps(call) for call in delta.get("tool_calls") or []]
    return "".join(text for text in found if isinstance(text, str))
