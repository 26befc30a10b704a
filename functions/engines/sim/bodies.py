"""Whole responses, field for field as vLLM 0.32 writes them: every field is present, null if it has no value.

Usage: `total = prompt + completion`, and a prompt counts once for all its replies. Log probabilities come from no
model. They are stable per token, put the chosen token first and have vLLM's shapes. The engine is certain of all its
tokens (about 0.2 nats a token) except question marks (about 1.4). Since it echoes, a prompt determines how certain
its answer is.
"""

from collections.abc import Sequence
from hashlib import blake2b
from itertools import accumulate
from typing import Any

from functions.engines.sim.progress import Envelope, Progress
from functions.engines.sim.protocol import ChatBody, CompletionBody
from functions.engines.sim.tokenizer import Tokenizer


def _logprob(token_id: int, piece: str, rank: int) -> float:
    """Return a made-up log probability that falls with the rank and is lower for a piece with a question mark. The
    probabilities of all ranks sum to less than 1."""
    digest = blake2b(token_id.to_bytes(8, "big", signed=True), digest_size=4).digest()
    own = int.from_bytes(digest, "big") / 2**32
    if "?" in piece:
        return -1.7 - 0.1 * own - 0.4 * rank
    return -0.02 - 0.03 * own - (4.0 + rank if rank else 0.0)


def _alternatives(piece: str, count: int) -> list[str]:
    return [piece, *(f"{piece}~{rank}" for rank in range(1, count))]


def chat_logprobs(ids: Sequence[int], pieces: Sequence[str], *, top: int) -> dict[str, Any]:
    return {"content": [_chat_entry(token, piece, top) for token, piece in zip(ids, pieces, strict=True)]}


def _chat_entry(token_id: int, piece: str, top: int) -> dict[str, Any]:
    ranked = [_scored(text, token_id, piece, rank) for rank, text in enumerate(_alternatives(piece, max(top, 0)))]
    return {**_scored(piece, token_id, piece, 0), "top_logprobs": ranked[: max(top, 0)]}


def _scored(text: str, token_id: int, piece: str, rank: int) -> dict[str, Any]:
    return {"token": text, "logprob": _logprob(token_id, piece, rank), "bytes": list(text.encode("utf-8", "replace"))}


def completion_logprobs(
    ids: Sequence[int], pieces: Sequence[str], *, top: int, offset_chars: int = 0, prompt: bool = False
) -> dict[str, Any]:
    """Return log probabilities in the shape of OpenAI's plain completions. The first token of a `prompt` has none."""
    chosen = [
        None if prompt and index == 0 else _logprob(token, piece, 0)
        for index, (token, piece) in enumerate(zip(ids, pieces, strict=True))
    ]
    offsets = accumulate((len(piece) for piece in pieces), initial=offset_chars)
    ranked = [
        None
        if score is None
        else {t: _logprob(token, piece, r) for r, t in enumerate(_alternatives(piece, max(top, 1)))}
        for token, piece, score in zip(ids, pieces, chosen, strict=True)
    ]
    return {
        "text_offset": list(offsets)[: len(pieces)],
        "token_logprobs": chosen,
        "tokens": list(pieces),
        "top_logprobs": ranked,
    }


def plain_usage(prompt_tokens: int, completion_tokens: int) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "completion_tokens": completion_tokens,
    }


def cache_details(replies: Sequence[Progress], *, creation: bool) -> dict[str, int | None]:
    """Return cache counts of the first reply's prompt. Without `creation`, as in plain completions, newly cached tokens
    are null."""
    seq = replies[0].seq
    created = (seq.created_cache_tokens if seq else 0) if creation else None
    return {"cached_tokens": seq.cached_tokens if seq else 0, "created_cache_tokens": created}


def full_usage(prompt_tokens: int, replies: Sequence[Progress], *, details: bool, creation: bool) -> dict[str, Any]:
    """Return the `usage` of a whole response: every field, null if it has no value."""
    cached = {**cache_details(replies, creation=creation), "multimodal_tokens": None} if details else None
    return {
        **plain_usage(prompt_tokens, sum(reply.tokens for reply in replies)),
        "prompt_tokens_details": cached,
        "completion_tokens_details": None,
    }


def final_chunk_usage(
    prompt_tokens: int, replies: Sequence[Progress], *, details: bool, creation: bool
) -> dict[str, Any]:
    """Return the `usage` of a stream's last chunk: only fields that have a value."""
    usage = plain_usage(prompt_tokens, sum(reply.tokens for reply in replies))
    if details:
        known = cache_details(replies, creation=creation)
        usage["prompt_tokens_details"] = {name: value for name, value in known.items() if value is not None}
    return usage


def chat_response(
    envelope: Envelope, body: ChatBody, prompt_tokens: int, replies: Sequence[Progress]
) -> dict[str, Any]:
    usage = full_usage(prompt_tokens, replies, details=envelope.prompt_token_details, creation=True)
    return {
        "id": envelope.request_id,
        "object": "chat.completion",
        "created": envelope.created_s,
        "model": envelope.model,
        "choices": [_chat_choice(body, reply) for reply in replies],
        "service_tier": None,
        "system_fingerprint": envelope.fingerprint,
        "usage": usage,
        "prompt_logprobs": None,
        "prompt_token_ids": replies[0].choice.prompt.ids if body.return_token_ids else None,
        "prompt_text": None,
        "kv_transfer_params": None,
        "ec_transfer_params": None,
        "metrics": None,
    }


def _chat_choice(body: ChatBody, reply: Progress) -> dict[str, Any]:
    return {
        "index": reply.index,
        "message": {
            "role": "assistant",
            "content": reply.text,
            "refusal": None,
            "annotations": None,
            "audio": None,
            "function_call": None,
            "reasoning": None,
        },
        "logprobs": _chat_logprobs(body, reply),
        "finish_reason": reply.finish_reason,
        "stop_reason": reply.stop_reason,
        "token_ids": list(reply.ids) if body.return_token_ids else None,
        "routed_experts": None,
    }


def _chat_logprobs(body: ChatBody, reply: Progress) -> dict[str, Any] | None:
    if not body.logprobs:
        return None
    return chat_logprobs(reply.ids, reply.plan.pieces[: reply.tokens], top=body.top_logprobs or 0)


def completion_response(
    envelope: Envelope, body: CompletionBody, prompt_tokens: int, replies: Sequence[Progress], tokenizer: Tokenizer
) -> dict[str, Any]:
    return {
        "id": envelope.request_id,
        "object": "text_completion",
        "created": envelope.created_s,
        "model": envelope.model,
        "choices": [_completion_choice(body, reply, tokenizer) for reply in replies],
        "service_tier": None,
        "system_fingerprint": envelope.fingerprint,
        "usage": full_usage(prompt_tokens, replies, details=envelope.prompt_token_details, creation=False),
        "kv_transfer_params": None,
        "ec_transfer_params": None,
        "metrics": None,
    }


def _completion_choice(body: CompletionBody, reply: Progress, tokenizer: Tokenizer) -> dict[str, Any]:
    prompt = reply.choice.prompt
    text = "" if body.wanted_tokens == 0 else reply.text
    echoed = prompt.text if body.echo and not body.return_token_ids else ""
    return {
        "index": reply.index,
        "text": echoed + text,
        "logprobs": _completion_logprobs(body, reply, tokenizer),
        "finish_reason": reply.finish_reason,
        "stop_reason": reply.stop_reason,
        "token_ids": list(reply.ids) if body.return_token_ids else None,
        "prompt_logprobs": None,
        "prompt_token_ids": prompt.ids if body.return_token_ids else None,
        "routed_experts": None,
    }


def _completion_logprobs(body: CompletionBody, reply: Progress, tokenizer: Tokenizer) -> dict[str, Any] | None:
    if body.logprobs is None:
        return None
    prompt_ids = reply.choice.prompt.ids if body.echo else []
    reply_ids = () if body.wanted_tokens == 0 else reply.ids
    pieces = [*tokenizer.pieces(prompt_ids), *reply.plan.pieces[: len(reply_ids)]]
    return completion_logprobs([*prompt_ids, *reply_ids], pieces, top=body.logprobs, prompt=bool(body.echo))
