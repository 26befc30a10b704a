"""Plan of a reply: its text, the tokens in which it is sent, and why it ends. The plan exists before the first token
is sent.

The simulator echoes, so that replies can be checked. A reply repeats the last user message, so any client can
distinguish its own stream from a wrong one. An adapter adds its mark in front: its name and a digest of its weights.
A test thus sees which adapter answered and from which bytes. Every model knows the capital of France.

The rules of ending are vLLM's (v1/engine/detokenizer.py). The end-of-sequence token counts and adds no text.
`ignore_eos` continues until the length limit. A stop string ends the reply at the token that completes it and is cut
off. While stop strings are set, a stream lags by the longest of them less one character, so that no part of one is
sent.
"""

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice
from pathlib import Path

from functions.engines.sim.templates import ChatMessage
from functions.engines.sim.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Ending:
    """Conditions that end a reply."""

    max_tokens: int
    stop: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    include_stop: bool = False
    ignore_eos: bool = False
    min_tokens: int = 0


@dataclass(frozen=True, slots=True)
class ReplyPlan:
    ids: tuple[int, ...]
    deltas: tuple[str, ...]
    """Text that a stream sends with each token."""
    pieces: tuple[str, ...]
    """Text of each token by itself; differs from `deltas` if stop strings are set."""
    finish_reason: str
    stop_reason: str | int | None

    @property
    def text(self) -> str:
        return "".join(self.deltas)


def plan_reply(text: str, tokenizer: Tokenizer, ending: Ending) -> ReplyPlan:
    ids = tokenizer.encode(text, add_special_tokens=False)
    pieces = tokenizer.pieces(ids)
    wanted = ending.max_tokens if ending.ignore_eos else max(len(ids), min(ending.min_tokens, ending.max_tokens))
    if ids and wanted > len(ids):
        ids, pieces = list(islice(cycle(ids), wanted)), list(islice(cycle(pieces), wanted))
    if not ending.ignore_eos or not ids:
        ids, pieces = [*ids, tokenizer.eos_id], [*pieces, ""]
    plan = _cut_to_length(ids, pieces, ending, eos_id=tokenizer.eos_id)
    plan = _cut_at_stop_token(plan, ending)
    return _cut_at_stop_string(plan, ending) if ending.stop else plan


def _cut_to_length(ids: Sequence[int], pieces: Sequence[str], ending: Ending, *, eos_id: int) -> ReplyPlan:
    kept = tuple(ids[: ending.max_tokens])
    text = tuple(pieces[: ending.max_tokens])
    ended_itself = kept[-1] == eos_id and len(kept) == len(ids) and not ending.ignore_eos
    return ReplyPlan(kept, text, text, "stop" if ended_itself else "length", None)


def _cut_at_stop_token(plan: ReplyPlan, ending: Ending) -> ReplyPlan:
    for index, token in enumerate(plan.ids):
        if token in ending.stop_token_ids and index + 1 >= ending.min_tokens:
            pieces = (*plan.pieces[:index], "")
            return ReplyPlan(plan.ids[: index + 1], pieces, pieces, "stop", token)
    return plan


def _cut_at_stop_string(plan: ReplyPlan, ending: Ending) -> ReplyPlan:
    text = ""
    for index, piece in enumerate(plan.pieces):
        text += piece
        found = _first_stop(text, len(piece), ending.stop) if index + 1 > ending.min_tokens else None
        if found is not None:
            stop, at = found
            kept = text[: at + len(stop) if ending.include_stop else at]
            cut = replace(
                plan,
                ids=plan.ids[: index + 1],
                pieces=plan.pieces[: index + 1],
                finish_reason="stop",
                stop_reason=stop,
            )
            return _lagging(cut, kept, ending)
    return _lagging(plan, text, ending)


def _first_stop(text: str, new_chars: int, stops: Sequence[str]) -> tuple[str, int] | None:
    """Return the first stop string (in the given order) that the newest `new_chars` characters complete, and its
    position; None if there is none."""
    for stop in stops:
        at = text.find(stop, max(0, len(text) - new_chars - len(stop) + 1))
        if at >= 0:
            return stop, at
    return None


def _lagging(plan: ReplyPlan, text: str, ending: Ending) -> ReplyPlan:
    lag = 0 if ending.include_stop else max(map(len, ending.stop)) - 1
    deltas: list[str] = []
    sent = seen = 0
    for piece in plan.pieces[:-1]:
        seen += len(piece)
        upto = max(sent, min(seen - lag, len(text)))
        deltas.append(text[sent:upto])
        sent = upto
    return replace(plan, deltas=(*deltas, text[sent:]))


_CAPITAL_OF_FRANCE = re.compile(r"capital of france", re.IGNORECASE)
_MARK_BYTES = 1 << 20
"""Enough of the weights to distinguish two adapters, and few enough to load a large one without delay."""


def chat_reply(messages: Sequence[ChatMessage], *, mark: str | None, json_mode: bool) -> str:
    spoken = [message.content for message in messages if message.role == "user"] or [messages[-1].content]
    heard = spoken[-1]
    answer = "The capital of France is Paris." if _CAPITAL_OF_FRANCE.search(heard) else heard
    return _say(answer, mark=mark, json_mode=json_mode)


def completion_reply(prompt: str, *, mark: str | None, json_mode: bool) -> str:
    """Return a space and the prompt again, or `Paris.` if it is about France's capital; with `mark`, and as JSON if
    wanted."""
    answer = "Paris." if _CAPITAL_OF_FRANCE.search(prompt) else prompt.lstrip()
    return " " + _say(answer, mark=mark, json_mode=json_mode)


def adapter_mark(name: str, directory: Path) -> str:
    """Return `[name#digest]`, with a digest of adapter_config.json and the beginning of the weights.

    Raise OSError if the files are missing.
    """
    digest = hashlib.sha256((directory / "adapter_config.json").read_bytes())
    for weights in sorted(directory.glob("adapter_model.*")):
        with weights.open("rb") as file:
            digest.update(file.read(_MARK_BYTES))
    return f"[{name}#{digest.hexdigest()[:8]}]"


def _say(answer: str, *, mark: str | None, json_mode: bool) -> str:
    text = f"{mark} {answer}" if mark else answer
    return json.dumps({"reply": text}, ensure_ascii=False) if json_mode else text
