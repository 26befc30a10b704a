"""Event queue in virtual time; events of equal times happen in the order in which they were scheduled."""

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
        """What is to happen yet."""
        return len(self._waiting)

    def due(self, kind: type[Callable[[], None]]) -> "Events":
        """Of that kind and at this time, in their order, and nothing else."""
        events = Events(self.now_s)
        for when_s, _, what in sorted(self._waiting, key=itemgetter(0, 1)):
            if when_s > self.now_s:
                break
            if isinstance(what, kind):
                events.at(when_s, what)
        return events

    def stop(self) -> None:
        """Nothing happens after what happens now."""
        self.is_stopped = True

    def run(self, until: Callable[[], bool], limit_s: float) -> None:
        """Let things happen until `until`; TimeoutError where that does not come by `limit_s`."""
        while not until():
            if not self._waiting or self._waiting[0][0] > limit_s:
                raise TimeoutError(f"nothing more happens, or not by {limit_s:.0f} s of virtual time")
            self._next()

    def run_until_stopped(self) -> None:
        """Let things happen until somebody says `stop`; TimeoutError where nothing more happens."""
        waiting, pop, happened = self._waiting, heapq.heappop, 0
        while not self.is_stopped:
            if not waiting:
                raise TimeoutError("nothing more happens, and nobody has said stop")
            self.now_s, _, what = pop(waiting)
            happened += 1
            what()
        self.happened += happened

    def run_all(self) -> None:
        """Until nothing more happens."""
        while self._waiting:
            self._next()

    def _next(self) -> None:
        self.now_s, _, what = heapq.heappop(self._waiting)
        self.happened += 1
        what()
