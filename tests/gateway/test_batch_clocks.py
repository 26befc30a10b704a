"""Age is judged by the store's clock, and only if the gateway's clock agrees."""

from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import Any

import pytest

from functions.artifacts.s3 import StoredObject
from functions.gateway.batch.collecting import Collecting
from functions.gateway.batch.files import names
from functions.gateway.batch.service import Batches
from tests.gateway.batch_memory import RangedStore, batches_of, put_file, shared_of
from tests.gateway.rig import Rig

BEGAN_S = 1_900_000_000.0
DAY_S = 24 * 3600.0


class DatedStore(RangedStore):
    """Store with its own clock."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = BEGAN_S
        self.dates: dict[str, float] = {}

    def put(self, key: str, body: bytes, *, sha256: str | None = None) -> None:
        super().put(key, body)
        self.dates[key] = self.now_s

    def list(self, prefix: str) -> Iterator[StoredObject]:
        for one in super().list(prefix):
            yield StoredObject(one.key, one.size_bytes, self.dates[one.key])

    def list_multipart_uploads(self, **_: Any) -> dict[str, Any]:
        return {}


@pytest.fixture
def objects() -> DatedStore:
    return DatedStore()


@pytest.fixture
def rig() -> Rig:
    return Rig()


@pytest.fixture
async def batches(rig: Rig, objects: DatedStore) -> AsyncIterator[Batches]:
    made = batches_of(rig, objects)
    for tenant in ("acme", "globex"):
        file_id = names.new_id("file", BEGAN_S)
        put_file(objects, file_id, b"{}\n", tenant)
        await made.shelf.save_record(tenant, file_id, size_bytes=3, filename="f", purpose="batch", now_unix_s=BEGAN_S)
    yield made
    made.close_store()


async def collected(batches: Batches, rig: Rig, ours_s: float) -> int:
    services = replace(rig.gateway.services, wall_clock=lambda: ours_s)
    return await Collecting(replace(shared_of(batches), services=services)).collect()


@pytest.mark.parametrize(("store_days", "our_days"), [(0, 31), (31, 0), (31, 62)])
async def test_disagreeing_clocks_collect_nothing(
    batches: Batches, rig: Rig, objects: DatedStore, store_days: int, our_days: int
) -> None:
    objects.now_s += store_days * DAY_S
    assert await collected(batches, rig, BEGAN_S + our_days * DAY_S) == 0
    assert [await batches.shelf.count(tenant) for tenant in ("acme", "globex")] == [1, 1]


async def test_agreeing_clocks_collect_what_is_old_by_the_stores_clock(
    batches: Batches, rig: Rig, objects: DatedStore
) -> None:
    assert await collected(batches, rig, BEGAN_S + 3000) == 0, "50 minutes apart, and nothing is old"
    objects.now_s += 31 * DAY_S
    assert await collected(batches, rig, BEGAN_S + 31 * DAY_S - 3000) == 4
    assert not [key for key in objects.objects if key.startswith(("records/", "contents/"))]
