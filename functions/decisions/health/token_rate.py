"""Token rate of an engine by its own count: the output of its accelerators, for all clients.

    tokens/s = (tokens now - tokens at the oldest mark) / seconds since then, over the last WINDOW_S

Marks are set each MARK_EVERY_S, so there are seven at most. Worked example (test_worked_example_from_the_prologue):
marks at 0 s with 0 tokens, at 5 s with 1,000 and at 10 s with 4,000 give 400 tokens a second; on two accelerators,
200 for each.

One process counts all tokens of a replica. With the gateways' counts, tokens would be missing while a gateway is
away.
"""

from dataclasses import dataclass

WINDOW_S = 30.0
MARK_EVERY_S = 5.0


@dataclass(frozen=True, slots=True)
class Mark:
    at_s: float
    tokens: int


@dataclass(frozen=True, slots=True)
class TokenRate:
    """Rate of one engine. Updated by `observe` about once a second."""

    per_s: float = 0.0
    marks: tuple[Mark, ...] = ()  # oldest first


def observe(rate: TokenRate, tokens: int, now_s: float) -> TokenRate:
    """Return the rate after another sample; `tokens` is the sum since the engine started. A sum that fell means a
    restarted engine: the rate starts anew at 0."""
    marks = rate.marks
    if not marks or tokens < marks[-1].tokens or now_s < marks[-1].at_s:
        return TokenRate(0.0, (Mark(now_s, tokens),))
    if now_s - marks[-1].at_s >= MARK_EVERY_S:
        marks = (*marks, Mark(now_s, tokens))
    while len(marks) > 1 and now_s - marks[0].at_s > WINDOW_S:
        marks = marks[1:]
    oldest = marks[0]
    elapsed_s = now_s - oldest.at_s
    return TokenRate((tokens - oldest.tokens) / elapsed_s if elapsed_s > 0 else rate.per_s, marks)
