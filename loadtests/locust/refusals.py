"""What a client does with a status: a refusal is obeyed, up to a bound; anything else that is no 200 is a failure.

429 and 503 are refusals where they say when to come back: the platform keeps its word, and the client waits so long.
One without `retry-after` breaks the contract and is a failure, and so is one that asks for longer than the client
would ever wait. Who was refused `most_tries` times has given up, which counts for itself.
"""

from dataclasses import dataclass
from typing import Literal

REFUSALS = (429, 503)
LONGEST_WAIT_S = 600.0  # a hostile or mistaken header does not hold a user for ever


@dataclass(frozen=True, slots=True)
class NextStep:
    what: Literal["answered", "wait", "give_up", "fail"]
    wait_s: float = 0.0
    why: str = ""


def next_step(status: int, retry_after: str | None, code: str, tries: int, most_tries: int) -> NextStep:
    """After the `tries`-th attempt. `code` is the error's, for the name of a failure."""
    if status == 200:
        return NextStep("answered")
    if status not in REFUSALS:
        return NextStep("fail", why=f"{status} {code}")
    wait_s = retry_after_s(retry_after)
    if wait_s is None:
        return NextStep("fail", why=f"{status} {code}, and no retry-after")
    if wait_s > LONGEST_WAIT_S:
        return NextStep("fail", why=f"{status} {code}, and retry-after above {LONGEST_WAIT_S:.0f} s")
    if tries >= most_tries:
        return NextStep("give_up", why=f"{status} {code}")
    return NextStep("wait", wait_s)


def retry_after_s(value: str | None) -> float | None:
    """Seconds, as the contract has it; a date or anything else is none."""
    if value is None or not value.strip().isdecimal() or len(value) > 9:
        return None
    return float(value)
