"""A client's reaction to a status: it obeys refusals up to a limit; any other status but 200 is a failure.

A 429 or 503 with `retry-after` is a refusal: the client waits so long and sends the request again. One without
`retry-after` breaks the contract and is a failure, and so is a wait above LONGEST_WAIT_S. A request that is refused
`most_tries` times is given up, which is counted separately.
"""

from dataclasses import dataclass
from typing import Literal

REFUSALS = (429, 503)
LONGEST_WAIT_S = 600.0  # a wrong header must not stop a user for ever


@dataclass(frozen=True, slots=True)
class NextStep:
    what: Literal["answered", "wait", "give_up", "fail"]
    wait_s: float = 0.0
    why: str = ""


def next_step(status: int, retry_after: str | None, code: str, tries: int, most_tries: int) -> NextStep:
    """Decide the step after the `tries`-th attempt. `code` is the error code, for the name of a failure."""
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
    """Return the seconds of a `retry-after` header, or None for a date or anything else."""
    if value is None or not value.strip().isdecimal() or len(value) > 9:
        return None
    return float(value)
