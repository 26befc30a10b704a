"""Many batches: each one is found, and a tenant's limit on open batches holds."""

import asyncio
from collections import Counter
from dataclasses import replace
from functools import partial

import httpx
import pytest

from functions.artifacts.errors import StoreUnavailable
from functions.artifacts.s3 import StoredObject
from functions.gateway.batch.files import names
from functions.gateway.batch.log import BatchProgress, TooManyOpen
from functions.gateway.batch.routes import add_routes
from functions.gateway.batch.service import Batches
from functions.gateway.http.asgi import make_app
from tests.decisions.batch.test_batch_record import record
from tests.gateway.batch_memory import RangedStore, batch_id, batches_of, put_file
from tests.gateway.rig import ACME_KEY, NOW_UNIX_S, Rig

FILE_ID = "file-" + "1" * 32
BODY = {"input_file_id": FILE_ID, "endpoint": "/v1/chat/completions", "completion_window": "24h"}


async def batches_with_file(rig: Rig, objects: RangedStore) -> Batches:
    made = batches_of(rig, objects)
    put_file(objects, FILE_ID, b"{}\n")
    await made.shelf.save_record("acme", FILE_ID, size_bytes=3, filename="f", purpose="batch", now_unix_s=NOW_UNIX_S)
    return made


async def test_batch_behind_20000_others_is_claimed() -> None:
    rig, objects = Rig(), RangedStore()
    batches = await batches_with_file(rig, objects)
    for number in range(20_500):
        objects.put(names.marker_key(f"aaa{number % 500}", batch_id(number)), b"{}")
    last = record(input_file_id=FILE_ID)
    await batches.log.open(last)
    batches.conductor.notify_record(last)
    assert len(await batches.log.all_open()) == 20_501
    await batches.conductor._scan()
    latest = await batches.log.latest("acme", last.id)
    assert latest is not None and latest.claims == 1
    await rig.gateway.services.tasks.close()
    batches.close_store()


async def test_concurrent_creations_respect_the_open_batch_limit() -> None:
    rig, objects = Rig(), RangedStore()
    batches = await batches_with_file(rig, objects)
    most = batches.limits.open_per_tenant
    for number in range(most - 3):
        await batches.log.touch(replace(record(), id=batch_id(number)), BatchProgress(FILE_ID))
    transport = httpx.ASGITransport(app=make_app(rig.gateway, [partial(add_routes, batches)]))
    async with httpx.AsyncClient(transport=transport, base_url="https://localhost") as client:
        headers = {"authorization": f"Bearer {ACME_KEY}"}
        asked = [client.post("/v1/batches", json=BODY, headers=headers) for _ in range(60)]
        answers = await asyncio.gather(*asked)
    assert Counter(answer.status_code for answer in answers) == {200: 3, 429: 57}
    said = {answer.json()["error"]["message"] for answer in answers if answer.status_code == 429}
    assert said == {
        "You have 50 open batches, which is the limit. Wait for one to end, or cancel one.",
        "50 of your batches are being created, which is the limit. Wait for one to be created.",
    }
    assert len(await batches.log.all_open("acme")) == most and not len(batches.creations)
    batches.close_store()


async def test_batch_over_the_limit_set_elsewhere_is_not_created() -> None:
    objects = RangedStore()
    batches, first, second = batches_of(Rig(), objects), record(), record(id=batch_id(2))
    await batches.log.open(first, most=1)
    with pytest.raises(TooManyOpen):
        await batches.log.open(second, most=1)
    assert [one.id for one in await batches.log.all_open("acme")] == [first.id]
    assert await batches.log.latest("acme", second.id) is None
    batches.close_store()


async def test_a_batch_that_could_not_be_counted_leaves_no_marker() -> None:
    class Unlisted(RangedStore):
        def list(self, prefix: str) -> "list[StoredObject]":  # type: ignore[override]
            raise StoreUnavailable("gone")

    objects = Unlisted()
    batches = batches_of(Rig(), objects)
    with pytest.raises(StoreUnavailable):
        await batches.log.open(record(), most=1)
    assert not objects.objects
    batches.close_store()
