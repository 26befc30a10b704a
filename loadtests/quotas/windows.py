"""Tokens delivered in any minute, as a pure function of the deliveries.

window(t) = sum of the tokens in (t - 60 s, t]       for every delivery at t; the minimum only from 60 s after the start
"""

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

MINUTE_S = 60.0


class Minutes(NamedTuple):
    """Least and most tokens of any minute of a run; None if no minute is complete or nothing was delivered."""

    least: int | None
    most: int | None


def minutes(delivered: Iterable[tuple[float, int]], start_s: float, end_s: float) -> Minutes:
    """Return the minutes of `delivered`: pairs of time and number of tokens, in any order."""
    window: deque[tuple[float, int]] = deque()
    total, least, most = 0, None, None
    for at_s, tokens in sorted(delivered):
        if at_s > end_s:
            break
        window.append((at_s, tokens))
        total += tokens
        while at_s - window[0][0] >= MINUTE_S:
            total -= window.popleft()[1]
        most = total if most is None or total > most else most
        if at_s - start_s >= MINUTE_S:
            least = total if least is None or total < least else least
    return Minutes(least, most)
