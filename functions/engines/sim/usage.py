"""Token accounting as vLLM reports it.

`total = prompt + completion`, and a prompt counts once however many replies it gets.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from functions.engines.sim.chunks import Chunks
from functions.engines.sim.progress import Progress


def plain_usage(prompt_tokens: int, completion_tokens: int) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "completion_tokens": completion_tokens,
    }


def cache_details(replies: Sequence[Progress], *, creation: bool) -> dict[str, int | None]:
    """From the first reply's prompt; plain completions do not say what was newly cached."""
    seq = replies[0].seq
    created = (seq.created_cache_tokens if seq else 0) if creation else None
    return {"cached_tokens": seq.cached_tokens if seq else 0, "created_cache_tokens": created}


def full_usage(prompt_tokens: int, replies: Sequence[Progress], *, details: bool, creation: bool) -> dict[str, Any]:
    """The `usage` of a whole response: every field, null where there is nothing to say."""
    cached = {**cache_details(replies, creation=creation), "multimodal_tokens": None} if details else None
    return {
        **plain_usage(prompt_tokens, sum(reply.tokens for reply in replies)),
        "prompt_tokens_details": cached,
        "completion_tokens_details": None,
    }


def final_chunk_usage(
    prompt_tokens: int, replies: Sequence[Progress], *, details: bool, creation: bool
) -> dict[str, Any]:
    """The `usage` of a stream's last chunk: only what is known."""
    usage = plain_usage(prompt_tokens, sum(reply.tokens for reply in replies))
    if details:
        known = cache_details(replies, creation=creation)
        usage["prompt_tokens_details"] = {name: value for name, value in known.items() if value is not None}
    return usage


# What the engine computed, one line for each answer that it finished: the other side of every account.
#
#     <request id> <prompt tokens> <cached tokens> <completion tokens>
#
# Written in the same step as the answer's end, so that whoever adds up what clients were charged has something to
# compare with that never passed through a gateway.


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
