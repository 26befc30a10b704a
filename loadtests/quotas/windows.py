"""How much was delivered in any minute, from when it came: pure.

window(t) = sum of what came in (t - 60 s, t]       for every t at which something came, a whole minute after the start
"""

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

MINUTE_S = 60.0


class Minutes(NamedTuple):
    """Over all whole minutes of a run; None where it was shorter."""

    least: int | None
    most: int | None


def minutes(delivered: Iterable[tuple[float, int]], start_s: float, end_s: float) -> Minutes:
    """`delivered`: when, and how many tokens; in any order."""
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
