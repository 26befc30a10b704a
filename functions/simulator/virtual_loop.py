"""asyncio's event loop on virtual time, on which a simulated gateway runs the gateway's own code.

The gateway needs five things of its loop: `call_soon`, `call_later`, `create_task`, futures, and the time. Here they
are entries in the simulation's event queue (`events`), so tasks and timeouts run in virtual time, always in the same
order. There are no sockets, threads or processes; connections and the bus are simulated. An exception in a callback
ends the run, so that an error in a simulation is not only a log line.

A run also changes two settings of its process. `seldom_collected`: Python's garbage collector runs a hundred times
less often, as hundreds of thousands of objects live long and few cycles arise (500 replicas, 20,000 requests: 3.8 s
instead of 4.8). `quiet_gateways`: rejected requests and failed replicas are counted, not logged.
"""

import asyncio
import gc
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import Context
from typing import Any

from functions.simulator.events import Events

_MOST_ENDS = 8  # rounds of cancelling; tasks that start new ones in each round are left


class _Call:
    """A scheduled call that can be cancelled."""

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
        """Make this the running loop in the block, in place of any other; its tasks are cancelled at the end."""
        former = asyncio._get_running_loop()
        asyncio._set_running_loop(self)
        try:
            yield
        except BaseException:
            with suppress(Exception):  # the first exception is the one to report
                self._end_tasks()
            raise
        else:
            self._end_tasks()
        finally:
            asyncio._set_running_loop(former)

    def _end_tasks(self) -> None:
        """Cancel all tasks; only events due now still run, since a task that has not started must start in order to
        end.

        A task may start another one while it ends, which may wait for an event that no longer comes, so that one is
        cancelled in the next round. Raise the first error after the last round.
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

    # Methods of asyncio's interface.

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
    """Log only errors of the gateway in the block."""
    usual = {name: logging.getLogger(name).level for name in _LOGS}
    for name in _LOGS:
        logging.getLogger(name).setLevel(logging.ERROR)
    try:
        yield
    finally:
        for name, level in usual.items():
            logging.getLogger(name).setLevel(level)
