"""Token accounting as vLLM reports it.

`total = prompt + completion`, and a prompt counts once however many replies it gets.
"""

from collections.abc import Sequence
from typing import Any

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
