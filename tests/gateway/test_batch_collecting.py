"""Collecting against a real store: old objects are deleted, those of an open batch stay."""

import time

import pytest

from functions.artifacts.s3 import S3Store
from functions.artifacts.s3_large import LargeWriter, read_range
from functions.decisions.batch import record as batch_moves
from functions.gateway.batch.collecting import Collecting
from functions.gateway.batch.files import names
from functions.gateway.batch.limits import BatchLimits
from functions.gateway.batch.service import Batches
from functions.gateway.batch.shared import BatchServices
from tests.decisions.batch.test_batch_record import record
from tests.gateway.rig import NOW_UNIX_S, Rig

pytestmark = pytest.mark.servers
MONTH_S = 31 * 24 * 3600.0


async def store_file(batches: Batches, tenant: str, file_id: str) -> None:
    writer = batches.shelf.open_writer(tenant, file_id)
    writer.write(b"{}")
    writer.finish()
    await batches.shelf.save_record(tenant, file_id, size_bytes=2, filename="f", purpose="batch", now_unix_s=NOW_UNIX_S)


async def test_old_files_and_batches_are_collected_except_those_of_an_open_batch(store: S3Store) -> None:
    gateway = Rig().gateway
    batches = Batches(gateway.services, gateway.handle, store, BatchLimits())
    shared: BatchServices = batches.conductor._shared
    read, old, orphan = (names.new_id("file", 0) for _ in range(3))
    for file_id in (read, old):
        await store_file(batches, "acme", file_id)
    await batches.store.put(names.content_key("acme", orphan), b"{}")  # its gateway was killed before the record
    open_id, over_id = names.new_id("batch", 0), names.new_id("batch", 1)
    await batches.log.open(record(id=open_id, input_file_id=read))
    over = record(id=over_id, input_file_id=old)
    await batches.log.open(over)
    await batches.log.append(batch_moves.failed(over, (), 1))
    await batches.log.close(over)
    await batches.store.put(names.part_key("acme", over_id, 1, 0), b"[]\n")
    unfinished = LargeWriter(store, names.content_key("acme", names.new_id("file", 2)))
    unfinished.write(bytes(9 * 1024 * 1024))

    await Collecting(shared).collect_at(time.time() + MONTH_S + 8 * 24 * 3600)

    assert await batches.shelf.find("acme", read) is not None and await batches.shelf.find("acme", old) is None
    for gone in (old, orphan):
        assert await batches.store.size_of(names.content_key("acme", gone)) is None
    assert await batches.store.size_of(names.content_key("acme", read)) == 2
    assert await batches.log.ids("acme") == [open_id]
    assert not await batches.store.list_first("parts/", 10)
    assert not store.client.list_multipart_uploads(Bucket=store.bucket).get("Uploads")
    await Collecting(shared).collect_at(time.time() + MONTH_S + 8 * 24 * 3600)
    assert await batches.log.ids("acme") == [open_id]
    assert abs(await Collecting(shared)._store_says_unix_s() - time.time()) < 600
    await batches.store.delete([one.key for one in await batches.store.list_first("", 1000) if one.key != "ready"])


def test_large_object_appears_when_complete_and_is_read_by_ranges(store: S3Store) -> None:
    content = bytes(range(256)) * (70 * 1024)  # 17.5 MiB: three parts
    writer = LargeWriter(store, "large")
    for begin in range(0, len(content), 1024 * 1024):
        writer.write(content[begin : begin + 1024 * 1024])
    assert store.size_of("large") is None
    writer.finish()
    assert store.size_of("large") == len(content) == writer.written_bytes
    assert read_range(store, "large", 8 * 1024 * 1024 - 5, 10) == content[8 * 1024 * 1024 - 5 :][:10]
    assert read_range(store, "large", len(content), 10) == b""
    again = LargeWriter(store, "large")
    again.write(content)
    again.abort()
    assert store.size_of("large") == len(content), "what was there stays"
    store.delete(["large"])
