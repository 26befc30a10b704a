"""An event loop in virtual time: when nothing is ready, the clock jumps to the next timer.

Asyncio code of the product (tasks, timers, timeouts, futures) runs unchanged; sockets and threads are missing.
`create_connection` uses the `pipes` network; threads are refused, since they would depend on real time. The same seed
runs the same callbacks in the same order, which `steps` makes visible.
"""

import asyncio
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Protocol

_SPIN_LIMIT = 50_000  # passes of the loop at one instant: no correct program needs a thousand


class Node:
    """A process of the fleet, for the network and the log; a restarted one is another node of the same name."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True
        self.wall_step_s = 0.0  # offset of its wall clock

    def __repr__(self) -> str:
        return self.name


NODE: ContextVar[Node] = ContextVar("node")


class Dialler(Protocol):
    async def connect(
        self, node: Node, factory: Callable[[], asyncio.Protocol], host: str, port: int
    ) -> tuple[asyncio.Transport, asyncio.Protocol]: ...


class Stuck(Exception):
    """No event can ever happen again, or events happen for ever without time passing."""


class _Jump:
    """Replacement of the selector that would wait for sockets."""

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
        """Close nothing."""


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
        """Jump to the next timer; asyncio has removed cancelled ones from the top of its heap."""
        self._now_s = max(self._now_s, self._scheduled[0].when())  # type: ignore[attr-defined]

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any) -> Any:
        assert self.network is not None, "this loop has no network"
        return await self.network.connect(NODE.get(), protocol_factory, host, port)

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:  # type: ignore[override]
        raise RuntimeError("no threads in virtual time: they would bring real time back in")

    def _process_events(self, event_list: list[Any]) -> None:
        """Do nothing: there are only timers and callbacks."""

    def _write_to_self(self) -> None:
        """Do nothing: no selector waits."""
