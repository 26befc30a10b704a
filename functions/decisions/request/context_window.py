"""Which turns of a conversation stay when it is longer than the context window.

    turn      a user's message and all that follows it up to the next user's: the answer, tool calls, their results
    kept      the leading system messages, and of the turns the latest that fit together; always the last one whole

So a tool's result never loses the call that it answers, and an answer never its question. Turns go whole and from the
old end, never from the middle: what stays is what was said last, without gaps.

    room = window - output - system
    worked example (test_worked_example): window 100, output 20, system 10, turns of 30, 40 and 25 tokens: 70 are left
    for turns, 25 + 40 fit and 30 more do not, so the first turn is dropped

Where even the last turn does not fit, nothing is dropped: the engine refuses, and says by how much.

Neighbours: `functions.gateway.intake.context_overflow` counts tokens and acts on what is decided here.
"""

from collections.abc import Sequence
from dataclasses import dataclass

_SYSTEM = frozenset({"system", "developer"})


@dataclass(frozen=True, slots=True)
class Said:
    """One message of a conversation."""

    role: str
    tokens: int


def dropped(messages: Sequence[Said], room_tokens: int) -> range:
    """The indices of messages that go, so that the rest is at most `room_tokens`; empty where that cannot be, or is."""
    first = _first_turn(messages)
    left = room_tokens - sum(said.tokens for said in messages[:first])
    starts = [index for index in range(first, len(messages)) if index == first or messages[index].role == "user"]
    kept_from = len(messages)
    for start in reversed(starts):
        left -= sum(said.tokens for said in messages[start:kept_from])
        if left < 0:
            break
        kept_from = start
    return range(first, kept_from if kept_from < len(messages) else first)


def turns_in(messages: Sequence[Said]) -> int:
    """How many turns these are, for people."""
    return sum(said.role == "user" for said in messages) or int(bool(messages))


def _first_turn(messages: Sequence[Said]) -> int:
    """Where the leading system messages end."""
    for index, said in enumerate(messages):
        if said.role not in _SYSTEM:
            return index
    return len(messages)
