"""Log probabilities that nobody computed.

Stable per token, always the chosen one first, in the shapes that vLLM gives them. The engine is sure of all that it
says (about 0.2 nats a token) but of question marks (about 1.4): since it echoes, a prompt says how sure its answer will
be.
"""

from collections.abc import Sequence
from hashlib import blake2b
from itertools import accumulate
from typing import Any


def _logprob(token_id: int, piece: str, rank: int) -> float:
    """Falls with the rank; of all ranks together less than the whole mass."""
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
    """OpenAI's older shape. The first token of a `prompt` has no probability: nothing came before it."""
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
