"""Threads for what blocks on behalf of a tenant, so many for each: who gives up waiting does not free the thread.

A name server that does not answer holds a thread for as long as the system's resolver asks it, whatever the caller's
patience. So a place counts as taken until the thread has ended, and one tenant's dead name servers leave the other
tenants' places, and the loop's own threads, alone.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar
from weakref import WeakValueDictionary

MAX_THREADS = 16
MAX_OF_TENANT = 4

Found = TypeVar("Found")


class TenantThreads:
    """Owned by one event loop."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(MAX_THREADS, thread_name_prefix="tools")  # none until they are needed
        self._places: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    async def run(self, tenant: str, function: Callable[[], Found]) -> Found:
        """The function's result, once the tenant has a place for it."""
        loop = asyncio.get_running_loop()
        places = self._places.setdefault(tenant, asyncio.Semaphore(MAX_OF_TENANT))
        await places.acquire()
        job: Future[Found] = self._threads.submit(function)

        def ended(_: "Future[Found]") -> None:
            with suppress(RuntimeError):  # the loop has ended before
                loop.call_soon_threadsafe(places.release)

        job.add_done_callback(ended)
        return await asyncio.wrap_future(job)
