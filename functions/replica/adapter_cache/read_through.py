"""One read of the store for all concurrent requests for an object, and none while the object is on the disk.

There are at most `AT_ONCE` reads of the store. While `MAX_WAITING` objects are being read, further requests are
rejected and agents read the store themselves. A read continues if its first requester leaves, because others may wait
for it.
"""

import asyncio
import hashlib
import logging
from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

from functions.artifacts.errors import ArtifactCorrupt
from functions.artifacts.fetch import ObjectSource
from functions.artifacts.locations import CHUNKS_PREFIX, MANIFESTS_PREFIX
from functions.artifacts.manifest import CHUNK_MAX_BYTES, MANIFEST_MAX_BYTES
from functions.replica.adapter_cache.objects import CachedObjects, Kind, Name

AT_ONCE = 8  # each holds an object, usually 8 MiB and at most 64
MAX_WAITING = 256
_PLACES = {"chunks": (CHUNKS_PREFIX, CHUNK_MAX_BYTES), "manifests": (MANIFESTS_PREFIX, MANIFEST_MAX_BYTES)}

Result = Literal["hit", "joined", "miss", "busy", "failed"]
_log = logging.getLogger(__name__)


class TooBusy(Exception):
    """Too many objects are being read; read the store directly."""


@dataclass(slots=True)
class ReadThrough:
    """Cached objects, with missing ones read from the store. Owned by one event loop."""

    objects: CachedObjects
    store: ObjectSource
    results: Counter[Result] = field(default_factory=Counter)
    store_bytes_total: int = 0
    _coming: dict[Name, asyncio.Task[bytes]] = field(default_factory=dict)
    _reading: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_ONCE))

    async def get(self, kind: Kind, sha256: str) -> bytes:
        """Return the verified object, from the cache or else from the store. Raise TooBusy if too many are being read
        from the store, or an ArtifactError of the store."""
        content = await asyncio.to_thread(self.objects.read, kind, sha256)
        if content is not None:
            self.results["hit"] += 1
            return content
        name = (kind, sha256)
        task = self._coming.get(name)
        if task is not None:
            self.results["joined"] += 1
            return await asyncio.shield(task)
        if len(self._coming) >= MAX_WAITING:
            self.results["busy"] += 1
            raise TooBusy
        task = self._coming[name] = asyncio.get_running_loop().create_task(self._fetched(kind, sha256))
        task.add_done_callback(lambda done: self._ended(name, done))
        self.results["miss"] += 1
        return await asyncio.shield(task)

    async def close(self) -> None:
        tasks = list(self._coming.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _fetched(self, kind: Kind, sha256: str) -> bytes:
        prefix, max_bytes = _PLACES[kind]
        async with self._reading:
            content = await asyncio.to_thread(self.store.read_small, prefix + sha256, max_bytes)
        if await asyncio.to_thread(lambda: hashlib.sha256(content).hexdigest()) != sha256:
            raise ArtifactCorrupt(f"the store's object at {prefix}{sha256} has another digest")
        self.store_bytes_total += len(content)
        try:
            await asyncio.to_thread(self.objects.write, kind, sha256, content)
        except OSError as error:  # the object is returned all the same
            _log.warning("%s %s cannot be cached: %s", kind, sha256[:12], error.strerror)
        return content

    def _ended(self, name: Name, task: asyncio.Task[bytes]) -> None:
        del self._coming[name]
        if not task.cancelled() and task.exception() is not None:
            self.results["failed"] += 1
