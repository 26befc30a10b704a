"""Truncation of a conversation to the context window: which turns stay.

    turn      a user's message and all messages up to the next one: the answer, tool calls, their results
    kept      the leading system messages, and the latest turns that fit together; the last turn always stays whole

So a tool's result is never separated from its call, nor an answer from its question. Whole turns are dropped, oldest
first and never from the middle, so the rest of the conversation has no gaps.

    room = window - output - system
    worked example (test_worked_example): window 100, output 20, system 10, turns of 30, 40 and 25 tokens: 70 are left
    for turns, 25 + 40 fit and 30 more do not, so the first turn is dropped

If even the last turn does not fit, nothing is dropped: the engine rejects the request and reports the excess.

Neighbours: `functions.gateway.intake.context_overflow` counts tokens and applies the decision.
"""

from collections.abc import Sequence
from dataclasses import dataclass

_SYSTEM = frozenset({"system", "developer"})


@dataclass(frozen=True, slots=True)
class Said:
    """Role and length of one message of a conversation."""

    role: str
    tokens: int


def messages_to_drop(messages: Sequence[Said], room_tokens: int) -> range:
    """Return the indexes of the oldest turns to drop, after the leading system messages, so that the rest fits
    `room_tokens`; none if all fit or not even the last turn."""
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
    """Return the number of user messages, or 1 if there are only others; for messages to people."""
    return sum(said.role == "user" for said in messages) or int(bool(messages))


def _first_turn(messages: Sequence[Said]) -> int:
    """Return the index after the leading system messages."""
    for index, said in enumerate(messages):
        if said.role not in _SYSTEM:
            return index
    return len(messages)
