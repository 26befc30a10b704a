"""Log of a batch: numbered records in the store, of which the last counts.

A record is written only where its number is free: of two gateways that move a batch at once, one is told that it was
overtaken and looks again. That is all the agreement there is, and it needs no clock. Beside the log lies a marker for
as long as the batch is open; whoever works on it touches the marker, and writes there how far it is.
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
_RECORDS_MAX = 1000  # moves and claims of one batch are bounded far below
LISTED_MAX = 20_000  # records of one tenant

_Kind = TypeVar("_Kind")


class Overtaken(Exception):
    """Somebody else moved the batch first; `latest` is what is true now."""

    def __init__(self, latest: BatchRecord) -> None:
        super().__init__(f"{latest.id} is {latest.status} by record {latest.number}")
        self.latest = latest


class LogBroken(Exception):
    """A record's number is taken and the record is not there, or it is none that this release can read. Look again
    later; the others are as they were."""


class TooManyOpen(Exception):
    """The tenant may have no more batches that are not over: wait for one, or cancel one."""


class OutcomeUnknown(StoreUnavailable):
    """A first record may be there, or be there later: write another in its place, or find that it came first."""


@dataclass(frozen=True, slots=True)
class BatchProgress:
    """What a marker holds."""

    input_file_id: str
    lines: int = 0
    tally: Tally = field(default_factory=Tally)


class BatchLog:
    def __init__(self, store: FileStore) -> None:
        self._store = store

    async def open(self, record: BatchRecord, most: int | None = None) -> None:
        """The first record. Its marker comes before it: a batch without one would never be worked on. And once more
        after it: a record that took long may have been given up, marker and all. Raises OutcomeUnknown, and TooManyOpen
        where the tenant has more than `most` with it: then there is none of it.
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
        """By markers, its own among them, so that of several gateways which make one at once none counts too few. All
        of them may count too many: then each is refused, though one would fit."""
        try:
            if len(await self.all_open(record.tenant)) <= most:
                return
        except StoreUnavailable:
            with contextlib.suppress(StoreUnavailable):
                await self.forget(record.tenant, record.id)
            raise
        await self.forget(record.tenant, record.id)
        raise TooManyOpen(f"{record.tenant} has more than {most} batches that are not over")

    async def latest(self, tenant: str, batch_id: str) -> BatchRecord | None:
        """None where there is no such batch of this tenant's."""
        if not names.is_id("batch", batch_id):
            return None
        found = await self._store.found(names.log_prefix(tenant, batch_id), _RECORDS_MAX)
        return await self._read(found[-1].key, BatchRecord) if found else None

    async def append(self, record: BatchRecord) -> None:
        """Raises Overtaken where the number is taken."""
        key, document = names.log_key(record.tenant, record.id, record.number), msgspec.json.encode(record)
        if await self._store.put_new(key, document):
            return
        if await self._document(key) == document:
            return  # it was written, and the store's answer to that was lost
        latest = await self.latest(record.tenant, record.id)
        if latest is None:
            raise LogBroken(record.id)
        raise Overtaken(latest)

    async def follows(self, record: BatchRecord) -> BatchRecord | None:
        """The latest record, where one came after this."""
        key = names.log_key(record.tenant, record.id, record.number + 1)
        return await self.latest(record.tenant, record.id) if await self._store.size_of(key) is not None else None

    async def touch(self, record: BatchRecord, progress: BatchProgress) -> None:
        await self._store.put(names.marker_key(record.tenant, record.id), msgspec.json.encode(progress))

    async def progress(self, tenant: str, batch_id: str) -> BatchProgress | None:
        return await self._read(names.marker_key(tenant, batch_id), BatchProgress)

    async def close(self, record: BatchRecord) -> None:
        """It is over: nobody need look at it."""
        await self.forget(record.tenant, record.id)

    async def forget(self, tenant: str, batch_id: str) -> None:
        await self._store.delete([names.marker_key(tenant, batch_id)])

    async def all_open(self, tenant: str = "") -> list[OpenBatch]:
        """All there are, since whoever is cut off would never be worked on, and what it reads would be collected. There
        are as many as tenants may have at a time (`BatchLimits.open_per_tenant`), a thousand to a call of the store."""
        batches: list[OpenBatch] = []
        async for page in self._store.pages(names.marker_key(tenant, "") if tenant else "open/"):
            found = [
                OpenBatch(*_tenant_and_batch(one.key), one.modified_unix_s) for one in page if one.key.count("/") > 1
            ]
            batches += [one for one in found if names.is_id("batch", one.id)]
        return batches

    async def ids(self, tenant: str) -> list[str]:
        """All of a tenant's batches, the oldest first."""
        found = await self._store.found(names.log_prefix(tenant), LISTED_MAX)
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
    """Tenant and batch of a marker."""
    _, tenant, batch_id = key.split("/", 2)
    return tenant, batch_id
