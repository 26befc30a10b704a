"""A worker thread pauses so that the event loop can run, but not longer than needed."""

import time

from functions.fleet import pauses
from functions.fleet.pauses import pause_between_slices


def pauses_taken(slice_s: float, calls: int) -> int:
    """Count pauses from outside: a pause takes at least PAUSE_S of clock time and hardly any CPU time."""
    breathe = pause_between_slices(slice_s)
    taken = 0
    for _ in range(calls):
        began_s = time.perf_counter()
        breathe()
        taken += time.perf_counter() - began_s >= pauses.PAUSE_S
    return taken


def test_it_pauses_once_in_a_slice() -> None:
    assert pauses_taken(slice_s=0.0, calls=20) == 20
    assert pauses_taken(slice_s=3600.0, calls=1000) <= 5, "none of its own; a busy machine may take the CPU away"
