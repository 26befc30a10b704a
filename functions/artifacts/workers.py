"""Run blocking work on many items in a few threads; the first failure ends it.

The threads are daemons, unlike those of an executor: a process that ends must not wait for a stalled store.
"""

import threading
from collections.abc import Callable, Iterable
from typing import TypeVar

_Item = TypeVar("_Item")


def run_all(work: Callable[[_Item], object], items: Iterable[_Item], *, parallel: int) -> None:
    """Call `work` on every item, `parallel` at a time, and return when all calls have ended. After an exception no
    further item is started; the first one is raised once all running calls have ended."""
    waiting = list(items)
    waiting.reverse()
    failures: list[BaseException] = []
    lock = threading.Lock()

    def process_items() -> None:
        while True:
            with lock:
                if not waiting or failures:
                    return
                item = waiting.pop()
            try:
                work(item)
            except BaseException as error:  # raised again below, in the caller's thread
                with lock:
                    failures.append(error)
                return

    helpers = [
        threading.Thread(target=process_items, name="artifact chunks", daemon=True)
        for _ in range(min(parallel, len(waiting)) - 1)
    ]
    for helper in helpers:
        helper.start()
    process_items()
    for helper in helpers:
        helper.join()
    if failures:
        raise failures[0]
