"""Blocking work in one thread per call that does not delay the exit of the process.

`asyncio.to_thread` shares a few threads that the interpreter waits for at exit; a download from a stalled store would
fill them and delay a shutdown by minutes. The caller limits the number of concurrent calls.
"""

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def in_daemon_thread(name: str, work: Callable[[], T]) -> T:
    """Run `work` in a new daemon thread and return its result or raise its exception. Cancelling the wait lets the
    thread end by itself."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: Exception | None) -> None:
        if future.cancelled():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]  # None only where T allows it

    def run() -> None:
        try:
            result, error = work(), None
        except Exception as caught:  # passed to the waiting coroutine
            result, error = None, caught
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return await future
