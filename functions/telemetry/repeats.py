"""Deduplication of log lines: a kind of failure is logged once, and again after it has been absent for a while.

The kind leaves out details that differ each time, such as the object that an operation failed on. Otherwise an
unavailable store would be logged at every attempt.
"""

_KINDS = 32  # remembered kinds; a failure with ever-changing text is logged each time, and needs no more memory


class Repeats:
    def __init__(self, after_s: float = 60.0) -> None:
        self._after_s = after_s
        self._last_s: dict[str, float] = {}  # by kind, the most recent one last

    def is_new(self, kind: str, now_s: float) -> bool:
        """Record an occurrence of `kind`. Return True if it is worth a log line: the first, or the last one was long
        ago."""
        last_s = self._last_s.pop(kind, None)
        if len(self._last_s) >= _KINDS:
            del self._last_s[next(iter(self._last_s))]
        self._last_s[kind] = now_s
        return last_s is None or now_s - last_s > self._after_s


def kind_of(error: Exception) -> str:
    """Return the error's `kind` if it has one, else its text."""
    return str(getattr(error, "kind", "")) or str(error)
