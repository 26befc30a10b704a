"""Who may work now: places for what somebody waits for, and places of their own for what is done ahead of need.

Law: neither kind takes the other's places, and who waits for a place ahead moves to the urgent ones as soon as somebody
needs what it works on (`hurry`): else a cold load that was begun ahead would stand behind two slow prefetches. First
come, first served within a kind.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


@dataclass(slots=True)
class _Queue:
    free: int
    waiting: deque[tuple[Hashable, "asyncio.Future[_Queue]"]] = field(default_factory=deque)

    def serve(self) -> None:
        while self.free and self.waiting:
            _, place = self.waiting.popleft()
            if not place.done():  # else it was given up
                self.free -= 1
                place.set_result(self)


class Turns(Generic[Key]):
    """Owned by one event loop."""

    def __init__(self, *, urgent: int, ahead: int) -> None:
        self._urgent, self._ahead = _Queue(urgent), _Queue(ahead)

    @asynccontextmanager
    async def turn(self, key: Key, *, urgent: bool) -> AsyncIterator[None]:
        place: asyncio.Future[_Queue] = asyncio.get_running_loop().create_future()
        queue = self._urgent if urgent else self._ahead
        queue.waiting.append((key, place))
        queue.serve()
        try:
            await place
            yield
        finally:
            if place.done() and not place.cancelled():
                place.result().free += 1
                place.result().serve()

    def hurry(self, key: Key) -> None:
        """What waits ahead for this key is urgent now; nothing need."""
        hurried = [entry for entry in self._ahead.waiting if entry[0] == key]
        for entry in hurried:
            self._ahead.waiting.remove(entry)
        self._urgent.waiting.extend(hurried)
        self._urgent.serve()
