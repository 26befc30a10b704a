"""Seconds that a process stood in line for a processor: on a machine that is too full, silence is no sign of a hang.

A process that hangs waits for nothing, or computes; one that is ready to run and gets no processor cannot answer its
probes either, and to kill it makes the machine fuller: whatever starts next imports half a minute of Python in the same
queue. The kernel counts the wait of each thread (`/proc/PID/schedstat`, the second number, nanoseconds); the main one
has the event loop, so it is the one that is asked. Where the kernel does not count, nothing is forgiven.

Neighbours: `supervisor` asks between two probes; `step` takes what it says off a silence.
"""

from pathlib import Path

_NS_PER_S = 1e9
_WAITED = 1  # of the three numbers: ran, waited, times it was given a processor


def stood_in_line_s(pid: int, proc: Path = Path("/proc")) -> float | None:
    """Since the process began; None where that is not known."""
    try:
        return int((proc / str(pid) / "schedstat").read_text().split()[_WAITED]) / _NS_PER_S
    except (OSError, ValueError, IndexError):
        return None


class Starvation:
    """Of one process in its run: how long it waited between two times of asking."""

    __slots__ = ("_pid", "_total_s")

    def __init__(self) -> None:
        self._pid: int | None = None
        self._total_s: float | None = None

    def since_last_s(self, pid: int) -> float:
        """Seconds in line since the last call for the same process; 0 at the first."""
        total_s = stood_in_line_s(pid)
        before_s = self._total_s if pid == self._pid else None
        self._pid, self._total_s = pid, total_s
        if total_s is None or before_s is None:
            return 0.0
        return max(0.0, total_s - before_s)
