"""Where the reconciler gets an adapter: the node's cache, filled from the store, checked before anyone may load it."""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from functions.api.ids import Digest
from functions.artifacts import fetch as fetching
from functions.artifacts.adapters import check_adapter
from functions.artifacts.cache import ArtifactCache
from functions.artifacts.s3 import S3Store
from functions.replica.daemon_threads import in_daemon_thread

MAX_FETCHES = 4  # at once: enough to fill a link, few enough that the disk is not thrashed

_log = logging.getLogger(__name__)


class AdapterSource(Protocol):
    async def obtain(self, digest: Digest) -> Path:
        """The verified and checked directory of an adapter; ArtifactError where there is none to be had."""


@dataclass(slots=True)
class StoreSource:
    store: S3Store
    cache: ArtifactCache
    max_rank: int
    timeout_s: float
    clock: Callable[[], float] = time.monotonic
    _slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MAX_FETCHES))
    _flights: dict[Digest, asyncio.Lock] = field(default_factory=dict)

    async def obtain(self, digest: Digest) -> Path:
        """Single flight by digest: two models that share an artifact fetch it once."""
        lock = self._flights.setdefault(digest, asyncio.Lock())
        async with lock, self._slots:
            try:
                return await in_daemon_thread(f"fetch {digest[:19]}", lambda: self._obtain(digest))
            finally:
                if self._flights.get(digest) is lock:
                    del self._flights[digest]

    def _obtain(self, digest: Digest) -> Path:
        started_s = self.clock()
        path = fetching.fetch(self.store, self.cache, digest, timeout_s=self.timeout_s).absolute()
        facts = check_adapter(path, max_rank=self.max_rank)
        took_ms = (self.clock() - started_s) * 1000
        _log.info(
            "adapter %s: rank %d, %d bytes, obtained in %.0f ms", digest, facts.rank, facts.weights_bytes, took_ms
        )
        return path
