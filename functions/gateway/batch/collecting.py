"""Garbage collection: files and batches past their retention, and orphaned parts and contents.

Several gateways may collect at the same time, because deletions are idempotent. Files that an open batch reads or
writes are never deleted. Ages are measured by the store's clock alone, which is read from an object that is written
for this purpose. If that clock and this gateway's differ by more than an hour, one of them is wrong and nothing is
deleted: a clock that is a month ahead must not delete all files. (test_disagreeing_clocks_collect_nothing)
"""

import asyncio
import logging
from collections.abc import AsyncIterator

from functions.artifacts.errors import StoreUnavailable
from functions.artifacts.s3 import StoredObject
from functions.artifacts.s3_large import abort_stale
from functions.decisions.batch.choice import MAX_WINDOW_S, OpenBatch
from functions.gateway.batch.files import names
from functions.gateway.batch.log import LogBroken
from functions.gateway.batch.shared import BatchServices

_log = logging.getLogger(__name__)
_DAY_S = 24 * 3600.0
_PARTS_S = MAX_WINDOW_S + _DAY_S  # no batch is open for longer
_CLOCKS_APART_S = 3600.0  # ages are counted in days; synchronised clocks differ by seconds


class Collecting:
    def __init__(self, shared: BatchServices) -> None:
        self._shared = shared
        self._store = shared.store

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._shared.limits.collect_s * (0.5 + self._shared.uniform()))
            await self.collect()

    async def collect(self) -> int:
        """Delete old objects and return their number; do nothing if the store's and this gateway's clocks disagree."""
        now_unix_s = await self._store_says_unix_s()
        apart_s = now_unix_s - self._shared.services.wall_clock()
        if abs(apart_s) > _CLOCKS_APART_S:
            _log.warning(
                "no old file or batch is deleted: the store's clock is %.0f s ahead of this gateway's; set both by NTP",
                apart_s,
            )
            return 0
        return await self.collect_at(now_unix_s)

    async def collect_at(self, now_unix_s: float) -> int:
        """Delete objects that are old at this time of the store's clock, except those that open batches need.

        Return the number of deleted objects and of aborted stale uploads.
        """
        retention_s = self._shared.limits.file_retention_s
        open_ids, read_ids = await self._in_use()
        gone = await self._delete("parts/", now_unix_s - _PARTS_S, open_ids)
        # after the files that they name
        gone += await self._delete("batches/", now_unix_s - retention_s - MAX_WINDOW_S, open_ids)
        gone += await self._delete("records/", now_unix_s - retention_s, read_ids)
        gone += await self._delete_unrecorded(now_unix_s - _DAY_S)
        gone += await self._store.call(abort_stale, self._store.raw, now_unix_s - _DAY_S)
        _log.info("deleted %d objects of old files and batches", gone)
        return gone

    async def _store_says_unix_s(self) -> float:
        await self._store.put(names.CLOCK_KEY, b"")
        found = await self._store.list_first(names.CLOCK_KEY, 1)
        if not found:
            raise StoreUnavailable(f"{names.CLOCK_KEY} was written and is not listed")
        return found[0].modified_unix_s

    async def _in_use(self) -> tuple[set[str], set[str]]:
        """Return the ids of open batches, and of the files that they read or are about to write."""
        log, open_ids, read_ids = self._shared.log, set[str](), set[str]()
        for one in await log.all_open():
            open_ids.add(one.id)
            try:
                latest = await log.latest(one.tenant, one.id)
                if latest is not None:
                    read_ids |= {latest.input_file_id, latest.output_file_id, latest.error_file_id}
            except LogBroken as error:
                read_ids |= await self._read_by_marker(one, error)
        return open_ids, read_ids

    async def _read_by_marker(self, one: OpenBatch, error: LogBroken) -> set[str]:
        """Return the input file's id, by the marker, of a batch whose record cannot be read; empty if that fails too.

        The batch's outputs are too young to be deleted.
        """
        _log.warning("the log of batch %s cannot be read: %s", one.id, error)
        try:
            progress = await self._shared.log.progress(one.tenant, one.id)
        except LogBroken:
            return set()
        return {progress.input_file_id} if progress is not None else set()

    async def _delete(self, prefix: str, before_unix_s: float, but: set[str]) -> int:
        gone = 0
        async for page in self._older(prefix, before_unix_s):
            old = [one.key for one in page if one.key.split("/")[2] not in but]
            await self._store.delete(old)
            gone += len(old)
        return gone

    async def _delete_unrecorded(self, before_unix_s: float) -> int:
        """Delete contents older than this time that have no file record; return their number."""
        gone = 0
        async for page in self._older("contents/", before_unix_s):
            for one in page:
                _, tenant, file_id = one.key.split("/", 2)
                if await self._store.size_of(names.record_key(tenant, file_id)) is None:
                    await self._store.delete([one.key])
                    gone += 1
        return gone

    async def _older(self, prefix: str, before_unix_s: float) -> AsyncIterator[list[StoredObject]]:
        async for page in self._store.pages(prefix):
            yield [one for one in page if one.modified_unix_s < before_unix_s and one.key.count("/") >= 2]
