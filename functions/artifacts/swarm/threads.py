"""The threads of one download: few for the disk and sha256, as many for the store as may read from it at once."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

from functions.artifacts.errors import FetchUnderway

T = TypeVar("T")
_DISK_THREADS = 4


@dataclass(slots=True)
class Threads:
    store_reads: int
    _stopped: threading.Event = field(default_factory=threading.Event)
    _disk: ThreadPoolExecutor = field(init=False)
    _store: ThreadPoolExecutor = field(init=False)

    def __post_init__(self) -> None:
        self._disk = ThreadPoolExecutor(_DISK_THREADS, "chunks to disk")
        self._store = ThreadPoolExecutor(self.store_reads, "chunks from the store")

    async def on_disk(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._disk, work)

    async def at_store(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._store, work)

    def sleep(self, seconds: float) -> None:
        """Wait in a thread; FetchUnderway as soon as nobody waits for it any more."""
        if self._stopped.wait(seconds):
            raise FetchUnderway("the fetch was given up while it waited")

    def stop(self) -> None:
        """What runs ends at its next step; what has not begun never does."""
        self._stopped.set()
        self._disk.shutdown(wait=False, cancel_futures=True)
        self._store.shutdown(wait=False, cancel_futures=True)
