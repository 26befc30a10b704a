"""Pauses for an event loop while a thread beside it works on something large.

A thread that computes holds the interpreter for up to 5 ms at a time, and the loop waits that long after every wait of
its own. A thread that sleeps for a moment between slices gives it up at once. Each such moment costs the thread a turn
of the scheduler, which on a busy machine is long: so it is taken once a slice, however often the work offers it.
"""

import time
from collections.abc import Callable

PAUSE_S = 0.0002  # long enough for the loop to take over
SERVING_SLICE_S = 0.001  # beside a loop that serves requests
PATIENT_SLICE_S = 0.005  # beside one that nobody waits for by the millisecond


def breather(slice_s: float = SERVING_SLICE_S) -> Callable[[], None]:
    """For one piece of work in a thread: call it often; it pauses once in `slice_s`. Never on an event loop."""
    since_s = time.perf_counter()

    def breathe() -> None:
        nonlocal since_s
        if time.perf_counter() - since_s >= slice_s:
            time.sleep(PAUSE_S)
            since_s = time.perf_counter()

    return breathe
