"""What is worth another line in a log: a kind of failure once, and again when it has been away for a while.

The kind leaves out what differs each time, as the object that a store failed on: a store that is away would otherwise
be told of as often as it is tried.
"""

_KINDS = 32  # that are remembered: a failure of ever other words is told each time, and takes no memory


class Repeats:
    def __init__(self, after_s: float = 60.0) -> None:
        self._after_s = after_s
        self._last_s: dict[str, float] = {}  # by kind, the one that was seen last at the end

    def is_new(self, kind: str, now_s: float) -> bool:
        """It happened now; whether it had not for as long as makes it worth a line."""
        last_s = self._last_s.pop(kind, None)
        if len(self._last_s) >= _KINDS:
            del self._last_s[next(iter(self._last_s))]
        self._last_s[kind] = now_s
        return last_s is None or now_s - last_s > self._after_s


def kind_of(error: Exception) -> str:
    """As the error says of itself; else its words."""
    return str(getattr(error, "kind", "")) or str(error)
