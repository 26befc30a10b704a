"""End of a batch against a real store: every line is in one of its files, and a late holder changes nothing."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import Any

import pytest

from functions.artifacts.s3 import S3Store
from functions.artifacts.s3_large import LargeWriter
from functions.decisions.batch import record as batch_moves
from functions.decisions.batch.parts import LineResult, encode
from functions.decisions.batch.record import BatchRecord
from functions.gateway.batch.composing import Composing
from functions.gateway.batch.files import names
from functions.gateway.batch.files.shelf import Shelf
from functions.gateway.batch.files.store import FileStore
from functions.gateway.batch.limits import BatchLimits
from functions.gateway.batch.parts import PartMissing, ResultParts
from functions.gateway.batch.run import BatchRun
from functions.gateway.batch.service import Batches
from functions.gateway.batch.shared import BatchServices
from functions.gateway.intake.routes import CHAT
from tests.decisions.batch.test_batch_record import record
from tests.gateway.batch_rig import as_file, line
from tests.gateway.rig import NOW_UNIX_S, Rig

pytestmark = pytest.mark.servers
WAIT_S = 120.0
LIMITS = BatchLimits(watch_s=0.05, part_age_s=0.0)
Ended = tuple[BatchRecord, list[dict[str, Any]], list[dict[str, Any]]]


@pytest.fixture
def batches(store: S3Store) -> Iterator[Batches]:
    """The store is shared by all tests: what a test left there would become another test's batches."""
    gateway = Rig().gateway
    yield Batches(gateway.services, gateway.handle, store, LIMITS)
    store.delete([one.key for one in store.list("") if one.key != "ready"])


def shared_of(batches: Batches, store: FileStore | None = None, **limits: Any) -> BatchServices:
    shared = batches.conductor._shared
    return replace(shared, store=store or shared.store, limits=replace(LIMITS, **limits))


async def opened(batches: Batches, status: Any, ids: list[str], *more: bytes) -> BatchRecord:
    """Open a batch of these lines, claimed for the first time. Its key is unknown, so each line is answered with
    401."""
    first = record(
        status,
        id=names.new_id("batch", NOW_UNIX_S),
        input_file_id=names.new_id("file", NOW_UNIX_S),
        output_file_id=names.new_id("file", NOW_UNIX_S),
        error_file_id=names.new_id("file", NOW_UNIX_S),
        expires_s=int(NOW_UNIX_S) + 3600,
        lines=len(ids) + len(more),
    )
    lines = as_file(*(line(one) for one in ids), *more)
    await batches.store.put(names.content_key("acme", first.input_file_id), lines)
    await batches.log.open(first)
    return await claimed(batches, first, "g1")


async def claimed(batches: Batches, latest: BatchRecord, owner: str) -> BatchRecord:
    claim = batch_moves.claimed(latest, owner, int(NOW_UNIX_S))
    await batches.log.append(claim)
    return claim


async def part(batches: Batches, of: BatchRecord, *ids: str, number: int = 0) -> str:
    """Store answers to the first lines, as an earlier holder left them."""
    key = names.part_key("acme", of.id, 1, number)
    texts = [json.dumps({"custom_id": one, "error": None}).encode() for one in ids]
    await batches.store.put(key, encode([LineResult(number * 10 + at, True, text) for at, text in enumerate(texts)]))
    return key


async def run(shared: BatchServices, claim: BatchRecord) -> None:
    async with asyncio.timeout(WAIT_S):
        await BatchRun(shared, claim, CHAT).run()


async def ended(batches: Batches, batch_id: str) -> Ended:
    latest = await batches.log.latest("acme", batch_id)
    assert latest is not None
    files: list[list[dict[str, Any]]] = []
    for file_id, is_there in ((latest.output_file_id, latest.has_output), (latest.error_file_id, latest.has_errors)):
        assert (await batches.shelf.find("acme", file_id) is not None) == is_there
        content = b"".join([block async for block in batches.shelf.content("acme", file_id)]) if is_there else b""
        files.append([json.loads(one) for one in content.splitlines()])
    return latest, files[0], files[1]


def ids_in(lines: list[dict[str, Any]]) -> list[str]:
    return sorted(one["custom_id"] for one in lines)


async def files_of(batches: Batches, of: BatchRecord) -> list[str]:
    """Return the existing files of a batch, whichever holder wrote them."""
    stems = (of.output_file_id[:-2], of.error_file_id[:-2])
    found = await batches.store.list_first("contents/acme/", 1000) + await batches.store.list_first(
        "records/acme/", 1000
    )
    return sorted(one.key.split("/")[2] for one in found if one.key.split("/")[2].startswith(stems))


async def test_late_composer_of_a_finished_batch_writes_nothing(batches: Batches) -> None:
    first = await opened(batches, "finalizing", ["a", "b"])
    await part(batches, first, "a", "b")
    late = ResultParts(batches.store, first, LIMITS, lambda: 0.0)
    await late.recall()  # the holder stalls here
    await run(shared_of(batches), await claimed(batches, first, "g2"))
    over = await ended(batches, first.id)
    assert (over[0].status, over[0].owner, ids_in(over[1])) == ("completed", "g2", ["a", "b"])

    async def sees_nothing_new() -> None:
        """Find nothing: the holder stalled after its check."""

    composing = Composing(batches.store, batches.shelf, first, 10_000, shared_of(batches).metrics)
    with pytest.raises(PartMissing):
        await composing.run(late, NOW_UNIX_S, sees_nothing_new)
    assert await ended(batches, first.id) == over
    assert await files_of(batches, first) == [over[0].output_file_id] * 2


class StuckStore(FileStore):
    """Store whose writers block in their thread until the test lets them go on."""

    def __init__(self, store: S3Store) -> None:
        super().__init__(store)
        self.is_stuck, self.may_go_on = threading.Event(), threading.Event()

    def writer(self, key: str) -> LargeWriter:
        return StuckWriter(self.raw, key, stuck=self)


class StuckWriter(LargeWriter):
    def __init__(self, store: S3Store, key: str, stuck: StuckStore) -> None:
        super().__init__(store, key)
        self.stuck = stuck

    def _check_open(self) -> None:
        LargeWriter._check_open(self)
        if self.written_bytes:
            self.stuck.is_stuck.set()
            assert self.stuck.may_go_on.wait(WAIT_S)


async def test_log_is_checked_before_a_file_is_written(batches: Batches, store: S3Store) -> None:
    first = await opened(batches, "finalizing", ["a"])
    await part(batches, first, "a")
    await claimed(batches, first, "g2")
    watched = StuckStore(store)
    watched.may_go_on.set()
    await run(replace(shared_of(batches, watched, watch_s=3600.0), shelf=Shelf(watched, 3600.0, lambda: 0.0)), first)
    assert not watched.is_stuck.is_set() and await files_of(batches, first) == []
    latest = await batches.log.latest("acme", first.id)
    assert latest is not None and (latest.status, latest.owner) == ("finalizing", "g2")


async def test_late_holders_files_are_deleted(batches: Batches, store: S3Store) -> None:
    first = await opened(batches, "finalizing", ["a", "b"])
    await part(batches, first, "a", "b")
    stuck = StuckStore(store)
    shared = replace(shared_of(batches, stuck), shelf=Shelf(stuck, 3600.0, lambda: 0.0))
    late = asyncio.create_task(run(shared, first))
    assert await asyncio.to_thread(stuck.is_stuck.wait, WAIT_S)
    await run(shared_of(batches), await claimed(batches, first, "g2"))
    over = await ended(batches, first.id)
    stuck.may_go_on.set()
    await late
    assert await ended(batches, first.id) == over and ids_in(over[1]) == ["a", "b"]
    assert await files_of(batches, first) == [over[0].output_file_id] * 2


async def test_files_of_a_killed_holder_are_deleted(batches: Batches) -> None:
    first = await opened(batches, "finalizing", ["a"])
    await part(batches, first, "a")
    parts = ResultParts(batches.store, first, LIMITS, lambda: 0.0)
    await parts.recall()

    async def still_its_holder() -> None:
        """Find that the holder still owns the batch."""

    composing = Composing(batches.store, batches.shelf, first, 10_000, shared_of(batches).metrics)
    assert (await composing.run(parts, NOW_UNIX_S, still_its_holder)).has_output
    assert await files_of(batches, first) == [first.output_file_id] * 2
    await run(shared_of(batches), await claimed(batches, first, "g2"))
    over, answers, _ = await ended(batches, first.id)
    assert await files_of(batches, first) == [over.output_file_id] * 2 and ids_in(answers) == ["a"]


class LosingStore(FileStore):
    """Store that returns a part once and then loses it."""

    async def read(self, key: str, max_bytes: int) -> bytes | None:
        found = await super().read(key, max_bytes)
        if key.startswith("parts/") and key.endswith("-000001"):
            await self.delete([key])
        return found


async def test_lines_whose_results_were_lost_are_in_the_error_file(batches: Batches, store: S3Store) -> None:
    first = await opened(batches, "finalizing", [f"line {number}" for number in range(12)])
    await part(batches, first, *(f"line {number}" for number in range(10)))
    await part(batches, first, "line 10", "line 11", number=1)
    await run(shared_of(batches, LosingStore(store)), first)
    over, answers, failures = await ended(batches, first.id)
    assert (over.status, over.tally.completed, over.tally.failed) == ("completed", 10, 2)
    assert len(answers) == 10 and ids_in(failures) == ["line 10", "line 11"]
    assert {one["error"]["code"] for one in failures} == {"result_lost"}


class ShortStore(FileStore):
    """Store that returns only the first block of an object on the first read."""

    is_short = True

    async def blocks(self, key: str, start: int = 0) -> AsyncIterator[bytes]:
        was_short, self.is_short = self.is_short, False
        async for block in super().blocks(key, start):
            yield block[: block.index(b"\n")] if was_short else block


async def test_lines_that_were_not_read_are_read_again(batches: Batches, store: S3Store) -> None:
    first = await opened(batches, "in_progress", ["a", "b", "c"])
    await run(shared_of(batches, ShortStore(store)), first)
    over, _, failures = await ended(batches, first.id)
    assert (over.status, over.tally.failed) == ("completed", 3) and ids_in(failures) == ["a", "b", "c"]
    assert {one["response"]["status_code"] for one in failures} == {401}


async def test_unreadable_line_is_in_the_error_file(batches: Batches) -> None:
    first = await opened(batches, "in_progress", ["a"], b"{no json")
    await run(shared_of(batches), first)
    over, _, failures = await ended(batches, first.id)
    assert (over.status, over.tally.failed) == ("completed", 2) and ids_in(failures) == ["", "a"]
    (told,) = (one for one in failures if not one["custom_id"])
    assert told["error"]["code"] == "result_lost" and told["id"].endswith("_2")
