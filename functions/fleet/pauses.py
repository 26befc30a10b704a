"""Pauses for a thread that works on something large, so that the event loop can run.

A computing thread holds the interpreter for up to 5 ms at a time, and the loop waits that long after each of its own
waits. A thread that sleeps briefly between slices releases the interpreter immediately. Each pause costs the thread a
scheduler turn, which takes long on a busy machine, so it pauses once per slice, however often the work allows it.
"""

import time
from collections.abc import Callable

PAUSE_S = 0.0002  # long enough for the loop to continue
SERVING_SLICE_S = 0.001  # for a thread next to a loop that serves requests
PATIENT_SLICE_S = 0.005  # for a thread next to a loop without millisecond deadlines


def pause_between_slices(slice_s: float = SERVING_SLICE_S) -> Callable[[], None]:
    """Return a function that the work in a thread calls often; it sleeps for PAUSE_S once per `slice_s`. Never call it
    on an event loop."""
    since_s = time.perf_counter()

    def breathe() -> None:
        nonlocal since_s
        if time.perf_counter() - since_s >= slice_s:
            time.sleep(PAUSE_S)
            since_s = time.perf_counter()

    return breathe
