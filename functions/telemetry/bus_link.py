"""Whether a process is in touch with the bus, and for how long it has been so or not.

Gateway, registry and agent show it as `shoal_bus_up` and `shoal_bus_state_seconds`. Without the bus everything goes on,
on what was last known: these gauges are how anybody learns of it.
"""

from collections.abc import Callable


class BusLink:
    """Set by whoever listens or speaks, on one loop; read by anybody. The clock is monotonic."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._changed_s = clock()
        self.is_up = False  # before the first time, too

    def set(self, is_up: bool) -> None:
        if is_up != self.is_up:
            self.is_up, self._changed_s = is_up, self._clock()

    @property
    def state_s(self) -> float:
        """Since the bus was found or lost; before the first time since the start."""
        return max(0.0, self._clock() - self._changed_s)
