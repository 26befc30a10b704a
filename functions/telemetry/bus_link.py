"""Connection state of a process to the bus, and how long it has lasted.

Gateway, registry and agent export it as `shoal_bus_up` and `shoal_bus_state_seconds`. Without the bus everything
continues on the last known state, so these gauges are the only sign of the loss.
"""

from collections.abc import Callable


class BusLink:
    """State of the link: set on one event loop, readable from any thread. The clock is monotonic."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._changed_s = clock()
        self.is_up = False  # also before the first connection

    def set(self, is_up: bool) -> None:
        if is_up != self.is_up:
            self.is_up, self._changed_s = is_up, self._clock()

    @property
    def state_s(self) -> float:
        """Seconds since the link came up or was lost; since the start if it was never up."""
        return max(0.0, self._clock() - self._changed_s)
