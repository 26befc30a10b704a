"""Files of a tenant: written completely, found by id or listed newest first, deleted; never changed.

A file exists once its record does, which is written after its bytes. Deletion removes the record first, so that every
listed file can be read. A killed gateway leaves bytes without a record, which `collecting` finds.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec

from functions.artifacts.s3_large import LargeWriter
from functions.gateway.batch.files import names
from functions.gateway.batch.files.store import FileStore

_RECORD_MAX_BYTES = 16 * 1024
_READS_AT_ONCE = 8
MAX_LISTED = 10_000  # keys of one tenant that a listing reads at most
PAGE_DEFAULT, PAGE_MAX = 100, 1000
KEPT_PURPOSES = ("batch", "batch_output")


class FileRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=False):
    id: str
    size_bytes: int
    created_s: int
    expires_s: int
    filename: str
    purpose: str  # one of KEPT_PURPOSES

    def file_object(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "file",
            "bytes": self.size_bytes,
            "created_at": self.created_s,
            "expires_at": self.expires_s,
            "filename": self.filename,
            "purpose": self.purpose,
            "status": "processed",
        }


class Shelf:
    def __init__(self, store: FileStore, retention_s: float, wall_clock: Callable[[], float]) -> None:
        self._store = store
        self._retention_s = retention_s
        self._wall_clock = wall_clock

    def open_writer(self, tenant: str, file_id: str) -> LargeWriter:
        return self._store.writer(names.content_key(tenant, file_id))

    async def save_record(
        self,
        tenant: str,
        file_id: str,
        *,
        size_bytes: int,
        filename: str,
        purpose: str,
        now_unix_s: float,
        expiry_s: int | None = None,
    ) -> FileRecord:
        """Store and return the record of a file whose bytes are stored.

        The file expires after the retention time, or `expiry_s` if that is shorter.
        """
        now_s, kept_s = int(now_unix_s), int(self._retention_s)
        expires_s = now_s + (kept_s if expiry_s is None else min(kept_s, expiry_s))
        record = FileRecord(file_id, size_bytes, now_s, expires_s, filename, purpose)
        await self._store.put(names.record_key(tenant, file_id), msgspec.json.encode(record))
        return record

    async def find(self, tenant: str, file_id: str) -> FileRecord | None:
        """Return a file's record, or None if it is missing or expired. An expired file's bytes remain until the
        retention.
        """
        if not names.is_id("file", file_id):
            return None
        found = await self._store.read(names.record_key(tenant, file_id), _RECORD_MAX_BYTES)
        record = msgspec.json.decode(found, type=FileRecord) if found is not None else None
        return record if record is not None and self._wall_clock() < record.expires_s else None

    async def count(self, tenant: str) -> int:
        return len(await self._store.list_first(names.record_key(tenant, ""), MAX_LISTED))

    async def page(
        self, tenant: str, *, after: str | None, limit: int, purpose: str | None, ascending: bool
    ) -> tuple[list[FileRecord], bool]:
        """Return at most `limit` of the tenant's files after the id `after`, by id, and True if more follow.

        Only files of this `purpose` are returned if one is given; expired ones are left out.
        """
        keys = await self._store.list_first(names.record_key(tenant, ""), MAX_LISTED)
        ids = sorted((one.key.rsplit("/", 1)[1] for one in keys), reverse=not ascending)
        if after is not None:
            ids = [one for one in ids if (one > after if ascending else one < after)]
        page: list[FileRecord] = []
        while ids and len(page) <= limit:
            some, ids = ids[:_READS_AT_ONCE], ids[_READS_AT_ONCE:]
            found = await asyncio.gather(*(self.find(tenant, one) for one in some))
            page += [record for record in found if record is not None and purpose in (None, record.purpose)]
        return page[:limit], len(page) > limit

    async def delete(self, tenant: str, file_id: str) -> None:
        await self._store.delete([names.record_key(tenant, file_id)])
        await self._store.delete([names.content_key(tenant, file_id)])

    def content(self, tenant: str, file_id: str) -> AsyncIterator[bytes]:
        return self._store.blocks(names.content_key(tenant, file_id))
