"""What the model says. The simulator is an echo that can be checked, with an accent for every adapter.

A reply repeats the last user message, so any client can tell a right stream from a crossed one. An adapter puts
its mark in front: its name and a digest of its weights, so a test sees which adapter answered and from which
bytes. Asked for the capital of France, everybody knows.
"""

import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path

from functions.engines.sim.templates import ChatMessage

_CAPITAL_OF_FRANCE = re.compile(r"capital of france", re.IGNORECASE)
_MARK_BYTES = 1 << 20
"""Enough of the weights to tell two adapters apart, little enough to load a large one at once."""


def chat_reply(messages: Sequence[ChatMessage], *, mark: str | None, wants_json: bool) -> str:
    spoken = [message.content for message in messages if message.role == "user"] or [messages[-1].content]
    heard = spoken[-1]
    answer = "The capital of France is Paris." if _CAPITAL_OF_FRANCE.search(heard) else heard
    return _say(answer, mark=mark, wants_json=wants_json)


def completion_reply(prompt: str, *, mark: str | None, wants_json: bool) -> str:
    """What follows the prompt: the prompt again, after a space."""
    answer = "Paris." if _CAPITAL_OF_FRANCE.search(prompt) else prompt.lstrip()
    return " " + _say(answer, mark=mark, wants_json=wants_json)


def adapter_mark(name: str, directory: Path) -> str:
    """`[name#digest]`, the digest being of adapter_config.json and the beginning of the weights.

    Raises OSError when the files are not there.
    """
    digest = hashlib.sha256((directory / "adapter_config.json").read_bytes())
    for weights in sorted(directory.glob("adapter_model.*")):
        with weights.open("rb") as file:
            digest.update(file.read(_MARK_BYTES))
    return f"[{name}#{digest.hexdigest()[:8]}]"


def _say(answer: str, *, mark: str | None, wants_json: bool) -> str:
    text = f"{mark} {answer}" if mark else answer
    return json.dumps({"reply": text}, ensure_ascii=False) if wants_json else text
