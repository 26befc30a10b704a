"""The log and the parts of a batch on a store that is shared, slow or gone."""

import asyncio

import pytest

from functions.artifacts.errors import StoreUnavailable
from functions.decisions.batch import record as batch_moves
from functions.decisions.batch.parts import LineResult
from functions.gateway.batch.files import names
from functions.gateway.batch.files.store import FileStore
from functions.gateway.batch.limits import BatchLimits
from functions.gateway.batch.log import BatchLog, Overtaken
from functions.gateway.batch.parts import ResultParts
from tests.artifacts.memory_store import MemoryStore
from tests.decisions.batch.test_batch_record import record
from tests.gateway.rig import Clock


class GoneStore(MemoryStore):
    """Store that fails while `is_gone`; with `loses_answers` it writes but reports a failure."""

    is_gone = loses_answers = False

    def put(self, key: str, body: bytes, *, sha256: str | None = None) -> None:
        if self.is_gone:
            raise StoreUnavailable("gone")
        super().put(key, body)

    def put_new(self, key: str, body: bytes, *, sha256: str | None = None) -> bool:
        return super().put_new(key, body) and not self.loses_answers


@pytest.fixture
def objects() -> GoneStore:
    return GoneStore()


@pytest.fixture
def store(objects: GoneStore) -> FileStore:
    return FileStore(objects)  # type: ignore[arg-type]


def result(ordinal: int, text: bytes = b"{}") -> LineResult:
    return LineResult(ordinal, True, text, 1, 0, 2)


async def test_second_of_two_concurrent_claims_fails(store: FileStore) -> None:
    log, first = BatchLog(store), record()
    await log.open(first)
    claims = [batch_moves.claimed(first, owner, 2) for owner in ("g1", "g2")]
    await log.append(claims[0])
    with pytest.raises(Overtaken) as overtaken:
        await log.append(claims[1])
    assert overtaken.value.latest == claims[0] == await log.latest("acme", first.id)
    assert await log.record_after(first) == claims[0] and await log.record_after(claims[0]) is None


async def test_record_with_a_lost_answer_counts_as_written(store: FileStore, objects: GoneStore) -> None:
    objects.loses_answers = True  # as if the store was slow and the client library had retried
    log = BatchLog(store)
    await log.open(record())
    assert await log.latest("acme", record().id) == record()


async def test_batch_is_visible_to_its_tenant_only(store: FileStore) -> None:
    log = BatchLog(store)
    await log.open(record())
    for tenant, batch_id in (("globex", record().id), ("acme", "../" + record().id), ("acme", "")):
        assert await log.latest(tenant, batch_id) is None
    assert await log.ids("globex") == [] and await log.ids("acme") == [record().id]
    assert [one.id for one in await log.all_open()] == [record().id] and not await log.all_open("globex")


async def test_undurable_results_are_not_counted_and_not_lost(store: FileStore, objects: GoneStore) -> None:
    parts = ResultParts(store, record(), BatchLimits(part_lines=2), Clock())
    objects.is_gone = True
    for ordinal in range(5):
        parts.add(result(ordinal))
    writing = asyncio.create_task(parts.write_until_stopped())
    parts.stop()
    async with asyncio.timeout(30):
        while parts.undurable != 5:
            await asyncio.sleep(0)
    assert parts.done.tally.done == 0 and not parts.keys
    objects.is_gone = False
    async with asyncio.timeout(30):
        await writing
    assert parts.undurable == 0 and parts.done.tally.completed == 5 and len(parts.keys) == 3


async def test_next_holder_recalls_done_lines_and_counts_none_twice(store: FileStore) -> None:
    first = ResultParts(store, record(number=2), BatchLimits(), Clock())
    first.add(result(0, b"first"))
    first.add(result(1))
    await first.write()
    second = ResultParts(store, record(number=4), BatchLimits(), Clock())
    await second.recall()
    assert 0 in second.done and 1 in second.done and 2 not in second.done
    second.add(result(2))
    second.add(result(0, b"again"))  # it was in flight at the first holder when that was overtaken
    await second.write()
    assert (second.done.tally.completed, second.done.tally.completion_tokens) == (3, 6)
    third = ResultParts(store, record(number=9), BatchLimits(), Clock())
    await third.recall()
    assert third.keys == second.keys and third.done.tally == second.done.tally


async def test_object_that_is_no_part_is_skipped(store: FileStore, objects: GoneStore) -> None:
    objects.objects[names.part_key("acme", record().id, 1, 0)] = b"no part"
    parts = ResultParts(store, record(), BatchLimits(), Clock())
    await parts.recall()
    assert parts.done.tally.done == 0


async def test_part_size_is_bounded_but_has_at_least_one_answer(store: FileStore, objects: GoneStore) -> None:
    parts = ResultParts(store, record(), BatchLimits(part_bytes=100), Clock())
    for ordinal, size_bytes in enumerate((60, 60, 500, 10)):
        parts.add(result(ordinal, b"x" * size_bytes))
    parts.stop()
    await parts.write_until_stopped()
    assert [[one.ordinal for one in await parts.read(key)] for key in parts.keys] == [[0], [1], [2], [3]]


async def test_undurable_bytes_hold_back_further_lines(store: FileStore) -> None:
    parts = ResultParts(store, record(), BatchLimits(undurable_bytes=100), Clock())
    parts.add(result(0, b"x" * 99))
    assert not parts.is_heavy
    parts.add(result(1, b"x"))
    assert parts.is_heavy
    await parts.write()
    assert not parts.is_heavy
