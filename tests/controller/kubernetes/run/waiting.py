"""Wait for a condition, with patience for a slow machine."""

import time
from collections.abc import Callable

WAIT_S = 120.0


def until(condition: Callable[[], object], what: str = "", timeout_s: float = WAIT_S) -> None:
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError(f"not within {timeout_s:.0f} s: {what or condition}")
