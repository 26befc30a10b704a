"""Object store for an event loop: each call runs in one of a few threads, and an outage becomes a 503.

Each instance has threads of its own, so that a store that hangs holds sixteen threads and no others. A gateway has
two instances, one for clients' requests and one for running batches.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import ParamSpec, TypeVar

from functions.artifacts.errors import ArtifactMissing
from functions.artifacts.s3 import S3Store, StoredObject
from functions.artifacts.s3_large import LargeWriter, read_range
from functions.gateway import errors
from functions.gateway.errors import RequestRejected

THREADS = 16
BLOCK_BYTES = 256 * 1024  # read per call: cutting it into lines holds the loop for under 10 ms
_RETRY_AFTER_S = 2

_Given = ParamSpec("_Given")
_Got = TypeVar("_Got")


class FileStore:
    """Asynchronous calls to the store. They raise StoreUnavailable in an outage; `storage_unavailable` makes a 503
    of it."""

    def __init__(self, store: S3Store) -> None:
        self._store = store
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="files")

    async def call(self, work: Callable[_Given, _Got], *given: _Given.args, **named: _Given.kwargs) -> _Got:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, lambda: work(*given, **named))

    async def ensure_bucket(self) -> None:
        await self.call(self._store.ensure_bucket)

    async def read(self, key: str, max_bytes: int) -> bytes | None:
        """Return a whole small object of at most `max_bytes`, or None if it is missing."""
        try:
            return await self.call(self._store.read_small, key, max_bytes)
        except ArtifactMissing:
            return None

    async def size_of(self, key: str) -> int | None:
        return await self.call(self._store.size_of, key)

    async def put(self, key: str, body: bytes) -> None:
        await self.call(self._store.put, key, body)

    async def put_new(self, key: str, body: bytes) -> bool:
        return await self.call(self._store.put_new, key, body)

    async def delete(self, keys: list[str]) -> None:
        await self.call(self._store.delete, keys)

    async def list_first(self, prefix: str, most: int) -> list[StoredObject]:
        return await self.call(lambda: list(islice(self._store.list(prefix), most)))

    async def pages(self, prefix: str, page: int = 1000) -> AsyncIterator[list[StoredObject]]:
        found: Iterator[StoredObject] = self._store.list(prefix)
        while some := await self.call(lambda: list(islice(found, page))):
            yield some

    async def blocks(self, key: str, start: int = 0) -> AsyncIterator[bytes]:
        """Yield an object's bytes from `start`, by ranges, so that a slow reader holds no connection.

        Raises ArtifactMissing if there is no such object.
        """
        while block := await self.call(read_range, self._store, key, start, BLOCK_BYTES):
            start += len(block)
            yield block

    def writer(self, key: str) -> LargeWriter:
        """Return a writer for a new object with this key. Its calls block: run them with `call`."""
        return LargeWriter(self._store, key)

    @property
    def raw(self) -> S3Store:
        return self._store

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._store.close()


def storage_unavailable(error: Exception) -> RequestRejected:
    message = "The store of files and batches is unreachable. Nothing stored is lost; try again shortly."
    answer = errors.unavailable(message, "storage_unavailable", _RETRY_AFTER_S)
    found = RequestRejected(answer)
    found.__cause__ = error
    return found
