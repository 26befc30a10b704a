"""Log of a batch: numbered records in the store, of which the last one counts.

A record is written only if its number is free: if two gateways append at the same time, one gets Overtaken and reads
the log again. This is the whole agreement protocol, and it needs no clock. Next to the log is a marker while the
batch is open; the owner touches it and writes its progress there.
"""

import contextlib
import logging
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from functions.artifacts.errors import ArtifactCorrupt, StoreUnavailable
from functions.decisions.batch.choice import OpenBatch
from functions.decisions.batch.record import BatchRecord, Tally
from functions.gateway.batch.files import names
from functions.gateway.batch.files.store import FileStore

_log = logging.getLogger(__name__)
_RECORD_MAX_BYTES = 256 * 1024  # a hundred problems and sixteen pairs of metadata are 60 KB
_RECORDS_MAX = 1000  # moves and claims of one batch have far lower limits
LISTED_MAX = 20_000  # records of one tenant

_Kind = TypeVar("_Kind")


class Overtaken(Exception):
    """Another process moved the batch first; `latest` is the current record."""

    def __init__(self, latest: BatchRecord) -> None:
        super().__init__(f"{latest.id} is {latest.status} by record {latest.number}")
        self.latest = latest


class LogBroken(Exception):
    """A record is missing although its number is taken, or is unreadable for this release. Try again later."""


class TooManyOpen(Exception):
    """The tenant has too many batches that are not over: wait for one, or cancel one."""


class OutcomeUnknown(StoreUnavailable):
    """A first record may exist or appear later. Write another record with its number, or find that it came first."""


@dataclass(frozen=True, slots=True)
class BatchProgress:
    input_file_id: str
    lines: int = 0
    tally: Tally = field(default_factory=Tally)


class BatchLog:
    def __init__(self, store: FileStore) -> None:
        self._store = store

    async def open(self, record: BatchRecord, most: int | None = None) -> None:
        """Write the first record, with its marker before and touched again after it.

        A batch without a marker would never be run, and the marker of a slow first record may have been deleted
        meanwhile. Raises OutcomeUnknown, or TooManyOpen if the tenant has more than `most` open batches including
        this one; then no record is written.
        """
        await self.touch(record, BatchProgress(record.input_file_id))
        if most is not None:
            await self._count(record, most)
        try:
            await self.append(record)
        except StoreUnavailable as error:
            raise OutcomeUnknown(str(error)) from error
        try:
            await self.touch(record, BatchProgress(record.input_file_id))
        except StoreUnavailable as error:
            _log.warning("batch %s is made, and its marker was touched once only: %s", record.id, error)

    async def _count(self, record: BatchRecord, most: int) -> None:
        """Raise TooManyOpen if the tenant has more than `most` markers of open batches, including this record's.

        Gateways that make batches at the same time never count too few. They may all count too many; then each
        rejects, although one batch would fit. Before it raises, this record's marker is deleted.
        """
        try:
            if len(await self.all_open(record.tenant)) <= most:
                return
        except StoreUnavailable:
            with contextlib.suppress(StoreUnavailable):
                await self.delete_marker(record.tenant, record.id)
            raise
        await self.delete_marker(record.tenant, record.id)
        raise TooManyOpen(f"{record.tenant} has more than {most} batches that are not over")

    async def latest(self, tenant: str, batch_id: str) -> BatchRecord | None:
        """Return the batch's latest record, or None if the tenant has no such batch."""
        if not names.is_id("batch", batch_id):
            return None
        found = await self._store.list_first(names.log_prefix(tenant, batch_id), _RECORDS_MAX)
        return await self._read(found[-1].key, BatchRecord) if found else None

    async def append(self, record: BatchRecord) -> None:
        """Write a record; raises Overtaken if another record has its number. An identical one counts as written."""
        key, document = names.log_key(record.tenant, record.id, record.number), msgspec.json.encode(record)
        if await self._store.put_new(key, document):
            return
        if await self._document(key) == document:
            return  # it was written, and only the store's answer was lost
        latest = await self.latest(record.tenant, record.id)
        if latest is None:
            raise LogBroken(record.id)
        raise Overtaken(latest)

    async def record_after(self, record: BatchRecord) -> BatchRecord | None:
        """Return the batch's latest record if one was written after this one, else None."""
        key = names.log_key(record.tenant, record.id, record.number + 1)
        return await self.latest(record.tenant, record.id) if await self._store.size_of(key) is not None else None

    async def touch(self, record: BatchRecord, progress: BatchProgress) -> None:
        await self._store.put(names.marker_key(record.tenant, record.id), msgspec.json.encode(progress))

    async def progress(self, tenant: str, batch_id: str) -> BatchProgress | None:
        return await self._read(names.marker_key(tenant, batch_id), BatchProgress)

    async def close(self, record: BatchRecord) -> None:
        await self.delete_marker(record.tenant, record.id)

    async def delete_marker(self, tenant: str, batch_id: str) -> None:
        await self._store.delete([names.marker_key(tenant, batch_id)])

    async def all_open(self, tenant: str = "") -> list[OpenBatch]:
        """Return all open batches, by their markers, of this tenant or by default of all tenants, however many.

        A batch missing here would get no owner, and its files would be deleted.
        """
        batches: list[OpenBatch] = []
        async for page in self._store.pages(names.marker_key(tenant, "") if tenant else "open/"):
            found = [
                OpenBatch(*_tenant_and_batch(one.key), one.modified_unix_s) for one in page if one.key.count("/") > 1
            ]
            batches += [one for one in found if names.is_id("batch", one.id)]
        return batches

    async def ids(self, tenant: str) -> list[str]:
        found = await self._store.list_first(names.log_prefix(tenant), LISTED_MAX)
        return list(dict.fromkeys(one.key.split("/")[2] for one in found))

    async def _read(self, key: str, kind: type[_Kind]) -> _Kind | None:
        found = await self._document(key)
        try:
            return msgspec.json.decode(found, type=kind) if found is not None else None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise LogBroken(f"{key}: {error}") from error

    async def _document(self, key: str) -> bytes | None:
        try:
            return await self._store.read(key, _RECORD_MAX_BYTES)
        except ArtifactCorrupt as error:
            raise LogBroken(str(error)) from error


def _tenant_and_batch(key: str) -> tuple[str, str]:
    _, tenant, batch_id = key.split("/", 2)
    return tenant, batch_id
