"""asyncio's event loop on virtual time: the port by which a simulated gateway runs the gateway's own code.

The gateway's request machine asks its loop for five things: `call_soon`, `call_later`, `create_task`, futures, and the
time. Here they are entries of the same queue as everything else that happens in a simulation (`events`), so that its
tasks and timeouts run in virtual time, in the same order each time. There are no sockets, threads or processes: whoever
dials or calls a bus is given a modelled one.

What a callback raises ends the run: a mistake in a simulation must not be a line in a log.

A run also changes two settings of its process while it lasts. `seldom_collected`: hundreds of thousands of objects live
for long and hardly any circles arise, so Python's collector looks a hundred times as seldom (500 replicas, 20,000
requests: 3.8 s instead of 4.8). `quiet_gateways`: requests refused and replicas failed are counted, not logged.
"""

import asyncio
import gc
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import Context
from typing import Any

from functions.simulator.events import Events

_MOST_ENDS = 8  # what begins anew at each of its ends is left


class _Call:
    """What is to be called, unless it is cancelled before."""

    __slots__ = ("_args", "_callback", "_context")

    def __init__(self, callback: Callable[..., object], args: tuple[Any, ...], context: Context | None) -> None:
        self._callback: Callable[..., object] | None = callback
        self._args = args
        self._context = context

    def __call__(self) -> None:
        callback = self._callback
        if callback is None:
            return
        if self._context is not None:
            self._context.run(callback, *self._args)
        else:
            callback(*self._args)

    def cancel(self) -> None:
        self._callback, self._args = None, ()

    def cancelled(self) -> bool:
        return self._callback is None


class VirtualLoop(asyncio.AbstractEventLoop):
    def __init__(self, events: Events) -> None:
        self._events = events
        self._tasks: set[asyncio.Task[Any]] = set()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Within this, `asyncio.get_running_loop()` is this loop, whichever was before; at the end its tasks end."""
        former = asyncio._get_running_loop()
        asyncio._set_running_loop(self)
        try:
            yield
        except BaseException:
            with suppress(Exception):  # what was raised first is told
                self._end_tasks()
            raise
        else:
            self._end_tasks()
        finally:
            asyncio._set_running_loop(former)

    def _end_tasks(self) -> None:
        """Nothing else happens meanwhile but what is due: one that has not begun can only end by beginning.

        What a task does at its end may begin another one, and that one may wait for what now never happens: it is
        cancelled in its turn. Raises the first error of them once all have had their turns.
        """
        errors: list[Exception] = []
        for _ in range(_MOST_ENDS):
            if not self._tasks:
                break
            self._events = self._events.due(_Call)
            for task in tuple(self._tasks):
                task.cancel()
            while self._events.waiting:
                try:
                    self._events.run_all()
                except Exception as error:
                    errors.append(error)
        if errors:
            raise errors[0]

    # asyncio's names

    def time(self) -> float:
        return self._events.now_s

    def call_soon(self, callback: Any, *args: Any, context: Context | None = None) -> Any:  # type: ignore[override]
        call = _Call(callback, args, context)
        self._events.at(self._events.now_s, call)
        return call

    def call_later(self, delay: float, callback: Any, *args: Any, context: Context | None = None) -> Any:  # type: ignore[override]
        call = _Call(callback, args, context)
        self._events.after(delay, call)
        return call

    def call_at(self, when: float, callback: Any, *args: Any, context: Context | None = None) -> Any:  # type: ignore[override]
        call = _Call(callback, args, context)
        self._events.at(when, call)
        return call

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, *, name: str | None = None, context: Context | None = None) -> asyncio.Task[Any]:
        task = asyncio.Task(coro, loop=self, name=name, context=context)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        raise RuntimeError(str(context.get("message"))) from context.get("exception")

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False


_SELDOM = (100_000, 50, 100)
_LOGS = ("functions.gateway", "functions.fleet")


@contextmanager
def seldom_collected() -> Iterator[None]:
    usual = gc.get_threshold()
    gc.set_threshold(*_SELDOM)
    try:
        yield
    finally:
        gc.set_threshold(*usual)


@contextmanager
def quiet_gateways() -> Iterator[None]:
    """Nothing below an error is logged."""
    usual = {name: logging.getLogger(name).level for name in _LOGS}
    for name in _LOGS:
        logging.getLogger(name).setLevel(logging.ERROR)
    try:
        yield
    finally:
        for name, level in usual.items():
            logging.getLogger(name).setLevel(level)
