"""Whole responses, field for field as vLLM 0.32 writes them (every field, null where there is nothing)."""

from collections.abc import Sequence
from typing import Any

from functions.engines.sim.logprobs import chat_logprobs, completion_logprobs
from functions.engines.sim.progress import Envelope, Progress
from functions.engines.sim.protocol import ChatBody, CompletionBody
from functions.engines.sim.tokenizer import Tokenizer
from functions.engines.sim.usage import full_usage


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
