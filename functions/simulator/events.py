"""Event queue in virtual time. Events at equal times run in the order in which they were scheduled."""

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import itemgetter


@dataclass(slots=True)
class Events:
    now_s: float = 0.0
    happened: int = 0
    is_stopped: bool = False
    _waiting: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _asked: int = 0

    def at(self, when_s: float, what: Callable[[], None]) -> None:
        self._asked += 1
        heapq.heappush(self._waiting, (when_s if when_s > self.now_s else self.now_s, self._asked, what))

    def after(self, delay_s: float, what: Callable[[], None]) -> None:
        self.at(self.now_s + delay_s, what)

    @property
    def waiting(self) -> int:
        """Number of events still to run."""
        return len(self._waiting)

    def due(self, kind: type[Callable[[], None]]) -> "Events":
        """Return a queue with only the events of that kind that are due now, in their order."""
        events = Events(self.now_s)
        for when_s, _, what in sorted(self._waiting, key=itemgetter(0, 1)):
            if when_s > self.now_s:
                break
            if isinstance(what, kind):
                events.at(when_s, what)
        return events

    def stop(self) -> None:
        """Run no further event after the current one."""
        self.is_stopped = True

    def run(self, until: Callable[[], bool], limit_s: float) -> None:
        """Run events until `until` is true; raise TimeoutError if that does not happen by `limit_s`."""
        while not until():
            if not self._waiting or self._waiting[0][0] > limit_s:
                raise TimeoutError(f"no event is left before {limit_s:.0f} s of virtual time")
            self._next()

    def run_until_stopped(self) -> None:
        """Run events until `stop` is called; raise TimeoutError if no event is left."""
        waiting, pop, happened = self._waiting, heapq.heappop, 0
        while not self.is_stopped:
            if not waiting:
                raise TimeoutError("no event is left, and the run was not stopped")
            self.now_s, _, what = pop(waiting)
            happened += 1
            what()
        self.happened += happened

    def run_all(self) -> None:
        """Run events until none is left."""
        while self._waiting:
            self._next()

    def _next(self) -> None:
        self.now_s, _, what = heapq.heappop(self._waiting)
        self.happened += 1
        what()
