"""Virtual time: a queue of what happens when. Equal times happen in the order in which they were asked for."""

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Events:
    now_s: float = 0.0
    happened: int = 0
    _waiting: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _asked: int = 0

    def at(self, when_s: float, what: Callable[[], None]) -> None:
        self._asked += 1
        heapq.heappush(self._waiting, (max(when_s, self.now_s), self._asked, what))

    def after(self, delay_s: float, what: Callable[[], None]) -> None:
        self.at(self.now_s + delay_s, what)

    def run(self, until: Callable[[], bool], limit_s: float) -> None:
        """Let things happen until `until`; TimeoutError where that does not come by `limit_s`."""
        while not until():
            if not self._waiting or self._waiting[0][0] > limit_s:
                raise TimeoutError(f"nothing more happens, or not by {limit_s:.0f} s of virtual time")
            self.now_s, _, what = heapq.heappop(self._waiting)
            self.happened += 1
            what()
