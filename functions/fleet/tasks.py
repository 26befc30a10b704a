"""Supervised background tasks, which never fail silently.

A bare `asyncio.create_task` loses its exception and may be garbage-collected while it runs; lint forbids it.
`Supervised` owns its tasks. A task that raises is logged with its name and restarted after a pause, and `close` ends
all tasks.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from functions.telemetry.repeats import Repeats, kind_of

_log = logging.getLogger(__name__)


class Supervised:
    def __init__(self, restart_after_s: float = 1.0) -> None:
        self._restart_after_s = restart_after_s
        self._tasks: set[asyncio.Task[None]] = set()

    def forever(
        self, name: str, run: Callable[[], Awaitable[None]], *, expected: tuple[type[Exception], ...] = ()
    ) -> None:
        """Run `run` until closed; if it returns or raises, restart it after the pause. `expected` are the errors of a
        source that may be unavailable: they are logged as one line each, without a trace."""
        self._spawn(self._run_forever(name, run, expected), name)

    def once(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` to its end; an exception is logged. If cancelled before it began, it is closed."""
        self._spawn(self._log_failure(name, work), name).add_done_callback(lambda _: work.close())

    async def close(self, timeout_s: float = 5.0) -> None:
        """Cancel every task and wait until they end, at most `timeout_s`.

        `asyncio.wait_for` of Python 3.11 loses a cancellation if its awaitable completes at that moment, and the bus
        client uses it. A task that still runs after four fifths of the time is therefore cancelled once more.
        """
        tasks = set(self._tasks)
        for wait_s in (0.8 * timeout_s, 0.2 * timeout_s):
            for task in tasks:
                task.cancel()
            if tasks:
                _, tasks = await asyncio.wait(tasks, timeout=wait_s)

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _run_forever(
        self, name: str, run: Callable[[], Awaitable[None]], expected: tuple[type[Exception], ...]
    ) -> None:
        loop, repeats = asyncio.get_running_loop(), Repeats()
        while True:
            try:
                await run()
            except expected as error:
                if repeats.is_new(kind_of(error), loop.time()):  # a source that stays unavailable is logged once
                    _log.warning("%s: %s; tried again every %.1f s", name, error, self._restart_after_s)
            except Exception:
                _log.exception("task %s failed; it starts again in %.1f s", name, self._restart_after_s)
            await asyncio.sleep(self._restart_after_s)

    async def _log_failure(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception:
            _log.exception("task %s failed", name)
