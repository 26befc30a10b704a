"""An event loop whose time is virtual: when nothing is ready, the clock jumps to the next timer.

Everything that production code does with asyncio (tasks, timers, timeouts, futures) runs unchanged; only sockets and
threads are not there. `create_connection` goes to the `pipes` network, threads are refused, since they would bring real
time back in. With the same seed the same callbacks run in the same order, which `steps` makes visible.
"""

import asyncio
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Protocol

_SPIN_LIMIT = 50_000  # passes of the loop at one instant: no honest program needs a thousand


class Node:
    """A process of the fleet, as the network and the log know it; a restarted one is another node of the same name."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True
        self.wall_step_s = 0.0  # how far its wall clock was set

    def __repr__(self) -> str:
        return self.name


NODE: ContextVar[Node] = ContextVar("node")


class Dialler(Protocol):
    async def connect(
        self, node: Node, factory: Callable[[], asyncio.Protocol], host: str, port: int
    ) -> tuple[asyncio.Transport, asyncio.Protocol]: ...


class Stuck(Exception):
    """Nothing can ever happen again, or things happen for ever without time passing."""


class _Jump:
    """Stands where a selector would wait for sockets."""

    def __init__(self, loop: "VirtualLoop") -> None:
        self._loop = loop
        self._spins = 0

    def select(self, timeout: float | None) -> list[Any]:
        loop = self._loop
        loop.steps += 1
        if timeout is None:
            raise Stuck("every task waits for something that no timer will bring")
        if timeout > 0:
            loop.jump()
            self._spins = 0
        else:
            self._spins += 1
            if self._spins > _SPIN_LIMIT:
                self._spins = 0
                raise Stuck(f"{_SPIN_LIMIT} passes without time passing")
        return []

    def close(self) -> None:
        """There is nothing to close."""


class VirtualLoop(asyncio.BaseEventLoop):
    def __init__(self, start_s: float = 1000.0) -> None:
        super().__init__()
        self._now_s = start_s
        self._selector = _Jump(self)
        self._clock_resolution = 1e-9
        self.steps = 0  # passes of the loop
        self.network: Dialler | None = None

    def time(self) -> float:
        return self._now_s

    def jump(self) -> None:
        """To the next timer; asyncio has taken cancelled ones off the top of its heap."""
        self._now_s = max(self._now_s, self._scheduled[0].when())  # type: ignore[attr-defined]

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any) -> Any:
        assert self.network is not None, "this loop has no network"
        return await self.network.connect(NODE.get(), protocol_factory, host, port)

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:  # type: ignore[override]
        raise RuntimeError("no threads in virtual time: they would bring real time back in")

    def _process_events(self, event_list: list[Any]) -> None:
        """Timers and callbacks are all there is."""

    def _write_to_self(self) -> None:
        """Nobody waits in a selector who would have to be woken."""
