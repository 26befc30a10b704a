"""Which gateway takes up which batch, and when. Other gateways' batches, unstarted ones and unreadable records stay."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from dataclasses import replace

import msgspec
import pytest

from functions.artifacts.errors import StoreUnavailable
from functions.decisions.batch import record as batch_moves
from functions.decisions.batch.choice import LEASE_S
from functions.decisions.batch.record import Tally
from functions.gateway.batch.collecting import Collecting
from functions.gateway.batch.conductor import ENDPOINTS
from functions.gateway.batch.files import names
from functions.gateway.batch.log import BatchProgress
from functions.gateway.batch.run import BatchRun
from functions.gateway.batch.service import Batches
from tests.decisions.batch.test_batch_record import record
from tests.gateway.batch_memory import RangedStore, batch_id, batches_of, shared_of
from tests.gateway.rig import Rig, catalogue

OLD_S = 1.5 * LEASE_S


@pytest.fixture
def objects() -> RangedStore:
    return RangedStore()


@pytest.fixture
def rig() -> Rig:
    return Rig()


@pytest.fixture
async def batches(rig: Rig, objects: RangedStore) -> AsyncIterator[Batches]:
    made = batches_of(rig, objects)
    yield made
    await rig.gateway.services.tasks.close()
    made.close_store()


async def run_scan(batches: Batches, rig: Rig, after_s: float = 0.0) -> None:
    rig.clock.now_s += after_s
    await batches.conductor._scan()


async def test_batch_created_here_but_claimed_elsewhere_is_left_alone(batches: Batches, rig: Rig) -> None:
    log, first = batches.log, record()
    await log.open(first)
    batches.conductor.notify_record(first)
    theirs = batch_moves.claimed(first, "another", 2)
    await log.append(theirs)
    await run_scan(batches, rig)
    assert await log.latest("acme", first.id) == theirs and not batches.conductor.running
    await run_scan(batches, rig, OLD_S)
    assert (await log.latest("acme", first.id)) != theirs, "its owner is silent by now"


async def test_each_scan_counts_open_batches_per_tenant(batches: Batches, rig: Rig) -> None:
    shared = shared_of(batches)
    for number in range(3):
        await batches.log.open(replace(record(), id=batch_id(number)))
    await run_scan(batches, rig)
    assert shared.open_batches == {"acme": 3}
    await batches.log.delete_marker("acme", batch_id(0))
    await run_scan(batches, rig)
    assert shared.open_batches == {"acme": 2}


async def test_batch_with_a_late_first_record_is_taken_up(batches: Batches, rig: Rig) -> None:
    log, first = batches.log, record()
    await log.touch(first, BatchProgress(first.input_file_id))
    for _ in range(5):
        await run_scan(batches, rig, OLD_S)
    assert [one.id for one in await log.all_open()] == [first.id]
    await log.append(first)
    for _ in range(3):
        await run_scan(batches, rig, OLD_S)
    latest = await log.latest("acme", first.id)
    assert latest is not None and latest.claims == 1


async def test_marker_without_record_is_dropped_after_an_hour(batches: Batches, rig: Rig) -> None:
    log, first = batches.log, record()
    await log.touch(first, BatchProgress(first.input_file_id))
    for _ in range(150):
        await run_scan(batches, rig, OLD_S)
    assert not await log.all_open()


async def test_marker_without_record_is_logged_twice(
    batches: Batches, rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    """The marker is logged when it is found and when it is dropped, not each minute of the hour between."""
    log, first = batches.log, record()
    await log.touch(first, BatchProgress(first.input_file_id))
    with caplog.at_level(logging.WARNING, logger="functions.gateway.batch.conductor"):
        for _ in range(150):
            await run_scan(batches, rig, OLD_S)
    assert [first.id in line for line in caplog.messages] == [True, True]
    assert "no record yet" in caplog.messages[0] and "was dropped" in caplog.messages[1]


async def test_slow_creation_renews_the_batch_marker(batches: Batches, objects: RangedStore) -> None:
    first = record()
    objects.before_new = lambda _: objects.delete([names.marker_key("acme", first.id)])
    await batches.log.open(first)
    assert [one.id for one in await batches.log.all_open()] == [first.id]


async def test_cancellation_during_a_claim_is_respected(batches: Batches, rig: Rig, objects: RangedStore) -> None:
    first = record()
    await batches.log.open(first)
    batches.conductor.notify_record(first)
    cancelled = batch_moves.cancelled(first, 2)

    def cancel(_: str) -> None:
        objects.before_new = None
        objects.put(names.log_key("acme", first.id, 2), msgspec.json.encode(cancelled))
        batches.conductor.notify_record(cancelled)

    objects.before_new = cancel  # while the claim is being written
    await run_scan(batches, rig)
    assert await batches.log.latest("acme", first.id) == cancelled
    await run_scan(batches, rig)
    assert batches.conductor.running == 1


async def test_batch_created_here_is_claimed_once_the_store_is_back(
    batches: Batches, rig: Rig, objects: RangedStore
) -> None:
    await batches.log.open(record())
    batches.conductor.notify_record(record())

    def fail(_: str) -> None:
        objects.before_new = None
        raise StoreUnavailable("gone")

    objects.before_new = fail
    with pytest.raises(StoreUnavailable):
        await run_scan(batches, rig)
    await run_scan(batches, rig)
    assert batches.conductor.running == 1


async def test_no_batch_is_claimed_without_a_snapshot(batches: Batches, rig: Rig) -> None:
    log, first = batches.log, record()
    await log.open(first)
    batches.conductor.notify_record(first)
    known, rig.gateway.services.state.catalogue = rig.gateway.services.state.catalogue, None
    await run_scan(batches, rig)
    await run_scan(batches, rig, OLD_S)
    assert await log.latest("acme", first.id) == first
    rig.gateway.services.state.catalogue = known
    await run_scan(batches, rig)
    assert batches.conductor.running == 1


async def test_batch_run_waits_for_a_snapshot(batches: Batches, rig: Rig) -> None:
    claim = batch_moves.claimed(record(), "us", 2)
    for one in (record(), claim):
        await batches.log.append(one)
    rig.gateway.services.state.catalogue = None
    running = asyncio.ensure_future(BatchRun(shared_of(batches), claim, ENDPOINTS[claim.endpoint]).run())
    await asyncio.wait([running], timeout=0.2)
    assert not running.done()
    rig.gateway.swap(catalogue(epoch=2))
    async with asyncio.timeout(60):
        await running
    latest = await batches.log.latest("acme", claim.id)
    assert latest is not None and [one.code for one in latest.errors] == ["file_not_found"]


async def test_unreadable_records_do_not_block_other_batches(batches: Batches, rig: Rig, objects: RangedStore) -> None:
    log = batches.log
    for number, document in enumerate((b"{", b'{"id": 7}', b'{"id": "\xff"}')):
        broken = record(id=batch_id(number))
        await log.touch(broken, BatchProgress(broken.input_file_id))
        objects.put(names.log_key("acme", broken.id, 1), document)
    foreign = record(id=batch_id(3), endpoint="/v1/of-a-later-release")
    good = record(id=batch_id(4))
    for one in (foreign, good):
        await log.open(one)
    objects.put("open/strange", b"")
    await run_scan(batches, rig)
    await run_scan(batches, rig, OLD_S)
    await run_scan(batches, rig)
    latest = await log.latest("acme", good.id)
    assert latest is not None and latest.claims == 1
    assert await log.latest("acme", foreign.id) == foreign, "no claim is spent on it"


async def test_unreadable_records_do_not_stop_collecting(batches: Batches, objects: RangedStore) -> None:
    broken, good = record(), record(id=batch_id(1), input_file_id="file-" + "3" * 32)
    await batches.log.touch(broken, BatchProgress(broken.input_file_id))
    objects.put(names.log_key("acme", broken.id, 1), b"{")
    await batches.log.open(good)
    open_ids, read_ids = await Collecting(shared_of(batches))._in_use()
    assert open_ids == {broken.id, good.id} and read_ids >= {broken.input_file_id, good.input_file_id}
    assert await batches.reader_of("acme", broken.input_file_id) == broken.id


async def test_leaving_gateway_claims_no_further_batch(batches: Batches, rig: Rig, objects: RangedStore) -> None:
    made = [record(id=batch_id(number)) for number in range(3)]
    for one in made:
        await batches.log.open(one)
        batches.conductor.notify_record(one)

    def leaves(_: str) -> None:
        batches.conductor._is_leaving = True

    objects.before_new = leaves  # while the first claim is being written
    await run_scan(batches, rig)
    assert not batches.conductor.running
    found = [await batches.log.latest("acme", one.id) for one in made]
    assert [one.claims for one in found if one is not None] == [1, 0, 0]


async def test_store_threads_end_with_the_gateway(batches: Batches, objects: RangedStore) -> None:
    assert await batches.store.size_of("x") is None
    batches.close_store()
    assert objects.is_closed
    with pytest.raises(RuntimeError, match="shutdown"):
        await batches.store.size_of("x")


async def test_batch_claimed_too_often_fails(batches: Batches, rig: Rig) -> None:
    worn = replace(record(), claims=batch_moves.MAX_CLAIMS)
    await batches.log.open(worn)
    batches.conductor.notify_record(worn)
    await run_scan(batches, rig)
    latest = await batches.log.latest("acme", worn.id)
    assert latest is not None and latest.status == "failed"


async def test_failed_marker_write_uses_up_no_claim(
    batches: Batches, rig: Rig, objects: RangedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two gateways on a full store, which accepted only some small records, claimed a batch from each other once a
    second until it failed with too many claims."""
    log, theirs = batches.log, batch_moves.claimed(record(), "another", 2)
    await log.open(record())
    await log.append(theirs)
    marker, put = names.marker_key("acme", theirs.id), objects.put

    def full(key: str, body: bytes, *, sha256: str | None = None) -> None:
        if key == marker:
            raise StoreUnavailable("no space is left")
        put(key, body)

    monkeypatch.setattr(objects, "put", full)
    await run_scan(batches, rig)
    for _ in range(5):
        rig.clock.now_s += OLD_S
        with contextlib.suppress(StoreUnavailable):
            await batches.conductor._scan()
    assert await log.latest("acme", theirs.id) == theirs
    monkeypatch.setattr(objects, "put", put)
    await run_scan(batches, rig, OLD_S)
    latest = await log.latest("acme", theirs.id)
    assert latest is not None and latest.claims == 2, "and it is taken up when the store is well"


async def test_claim_keeps_the_progress_in_the_marker(batches: Batches, rig: Rig) -> None:
    log, theirs = batches.log, batch_moves.claimed(record(), "another", 2)
    await log.open(record())
    await log.append(theirs)
    said = BatchProgress(theirs.input_file_id, 7, Tally(completed=3))
    await log.touch(theirs, said)
    await run_scan(batches, rig)
    rig.clock.now_s += OLD_S
    batches.conductor._start_run = lambda *_: None  # type: ignore[method-assign]
    await batches.conductor._scan()
    latest = await log.latest("acme", theirs.id)
    assert latest is not None and latest.claims == 2
    assert await log.progress("acme", theirs.id) == said
