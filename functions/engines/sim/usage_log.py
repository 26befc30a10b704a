"""What the engine computed, one line for each answer that it finished: the other side of every account.

    <request id> <prompt tokens> <cached tokens> <completion tokens>

Written in the same step as the answer's end, so that whoever adds up what clients were charged has something to compare
with that never passed through a gateway.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from functions.engines.sim.chunks import Chunks
from functions.engines.sim.progress import Progress
from functions.engines.sim.usage import full_usage

Note = Callable[[int, Sequence[Progress]], None]


def note_to(path: Path, request_id: str) -> Note:
    """A note of one request's usage."""

    def note(prompt_tokens: int, replies: Sequence[Progress]) -> None:
        usage = full_usage(prompt_tokens, replies, details=True, creation=False)
        cached_tokens = usage["prompt_tokens_details"]["cached_tokens"]
        with path.open("a") as log:
            log.write(f"{request_id} {prompt_tokens} {cached_tokens} {usage['completion_tokens']}\n")

    return note


class NotedChunks:
    """A stream whose end is noted."""

    def __init__(self, chunks: Chunks, note: Note) -> None:
        self._chunks = chunks
        self._note = note

    def opening(self, replies: Sequence[Progress]) -> bytes:
        return self._chunks.opening(replies)

    def tokens(self, reply: Progress, start: int, end: int) -> bytes:
        return self._chunks.tokens(reply, start, end)

    def closing(self, prompt_tokens: int, replies: Sequence[Progress]) -> bytes:
        self._note(prompt_tokens, replies)
        return self._chunks.closing(prompt_tokens, replies)


def noted_body(
    body_of: Callable[[Sequence[Progress]], dict[str, Any]], prompt_tokens: int, note: Note
) -> Callable[[Sequence[Progress]], dict[str, Any]]:
    """A whole answer that is noted as it is written."""

    def body(replies: Sequence[Progress]) -> dict[str, Any]:
        note(prompt_tokens, replies)
        return body_of(replies)

    return body
