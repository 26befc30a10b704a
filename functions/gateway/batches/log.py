"""What is true of a batch: numbered records in the store, of which the last counts.

A record is written only where its number is free: of two gateways that move a batch at once, one is told that it was
overtaken and looks again. That is all the agreement there is, and it needs no clock. Beside the log lies a marker for
as long as the batch is open; whoever works on it touches the marker, and writes there how far it is.
"""

from dataclasses import dataclass, field

import msgspec

from functions.decisions.batch_choice import OpenBatch
from functions.decisions.batch_record import BatchRecord, Tally
from functions.gateway.files import names
from functions.gateway.files.store import FileStore

_RECORD_MAX_BYTES = 256 * 1024  # a hundred problems and sixteen pairs of metadata are 60 KB
_RECORDS_MAX = 1000  # moves and claims of one batch are bounded far below
OPEN_MAX = 20_000  # markers that a look takes in
LISTED_MAX = 20_000  # records of one tenant


class Overtaken(Exception):
    """Somebody else moved the batch first; `latest` is what is true now."""

    def __init__(self, latest: BatchRecord) -> None:
        super().__init__(f"{latest.id} is {latest.status} by record {latest.number}")
        self.latest = latest


class LogBroken(Exception):
    """A record's number is taken and the record is not there: the store contradicts itself. Look again later."""


@dataclass(frozen=True, slots=True)
class Beat:
    """What a marker holds."""

    input_file_id: str
    lines: int = 0
    tally: Tally = field(default_factory=Tally)


class BatchLog:
    def __init__(self, store: FileStore) -> None:
        self._store = store

    async def open(self, record: BatchRecord) -> None:
        """The first record. Its marker comes before it: a batch without one would never be worked on."""
        await self.touch(record, Beat(record.input_file_id))
        await self.append(record)

    async def latest(self, tenant: str, batch_id: str) -> BatchRecord | None:
        """None where there is no such batch of this tenant's."""
        if not names.is_id("batch", batch_id):
            return None
        found = await self._store.found(names.log_prefix(tenant, batch_id), _RECORDS_MAX)
        return await self._read(found[-1].key) if found else None

    async def append(self, record: BatchRecord) -> None:
        """Raises Overtaken where the number is taken."""
        key, document = names.log_key(record.tenant, record.id, record.number), msgspec.json.encode(record)
        if await self._store.put_new(key, document):
            return
        if await self._store.read(key, _RECORD_MAX_BYTES) == document:
            return  # it was written, and the store's answer to that was lost
        latest = await self.latest(record.tenant, record.id)
        if latest is None:
            raise LogBroken(record.id)
        raise Overtaken(latest)

    async def follows(self, record: BatchRecord) -> BatchRecord | None:
        """The latest record, where one came after this."""
        key = names.log_key(record.tenant, record.id, record.number + 1)
        return await self.latest(record.tenant, record.id) if await self._store.size_of(key) is not None else None

    async def touch(self, record: BatchRecord, beat: Beat) -> None:
        await self._store.put(names.marker_key(record.tenant, record.id), msgspec.json.encode(beat))

    async def beat(self, tenant: str, batch_id: str) -> Beat | None:
        found = await self._store.read(names.marker_key(tenant, batch_id), _RECORD_MAX_BYTES)
        return msgspec.json.decode(found, type=Beat) if found is not None else None

    async def close(self, record: BatchRecord) -> None:
        """It is over: nobody need look at it."""
        await self.forget(record.tenant, record.id)

    async def forget(self, tenant: str, batch_id: str) -> None:
        await self._store.delete([names.marker_key(tenant, batch_id)])

    async def all_open(self, tenant: str = "") -> list[OpenBatch]:
        found = await self._store.found(names.marker_key(tenant, "") if tenant else "open/", OPEN_MAX)
        batches = [OpenBatch(*_place(one.key), one.modified_unix_s) for one in found]
        return [one for one in batches if names.is_id("batch", one.id)]

    async def ids(self, tenant: str) -> list[str]:
        """All of a tenant's batches, the oldest first."""
        found = await self._store.found(names.log_prefix(tenant), LISTED_MAX)
        return list(dict.fromkeys(one.key.split("/")[2] for one in found))

    async def _read(self, key: str) -> BatchRecord | None:
        found = await self._store.read(key, _RECORD_MAX_BYTES)
        return msgspec.json.decode(found, type=BatchRecord) if found is not None else None


def _place(key: str) -> tuple[str, str]:
    """Tenant and batch of a marker."""
    _, tenant, batch_id = key.split("/", 2)
    return tenant, batch_id
