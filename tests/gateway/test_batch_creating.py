"""A batch is created once or not at all, whatever the store reports; invalid requests are rejected."""

import asyncio
import json
import threading
from functools import partial
from typing import Any

import msgspec
import pytest

from functions.artifacts.errors import StoreUnavailable, StoreUnfit
from functions.gateway.batch.files import names
from functions.gateway.batch.files.shelf import Shelf
from functions.gateway.batch.files.store import THREADS
from functions.gateway.batch.log import BatchProgress
from functions.gateway.batch.routes import BatchForm, _check_form, _open_log, add_routes
from functions.gateway.batch.service import Batches
from functions.gateway.errors import RequestRejected
from functions.gateway.http.asgi import make_app
from tests.decisions.batch.test_batch_record import record
from tests.gateway.batch_memory import RangedStore, batch_id, batches_of, shared_of
from tests.gateway.rig import ACME_KEY, Rig

NEW_BATCH = {"input_file_id": "file-1", "endpoint": "/v1/chat/completions", "completion_window": "24h"}


class DoubtfulStore(RangedStore):
    """Store whose first new object fails: it is written all the same (`is_written`) or later."""

    is_written = False
    late: tuple[str, bytes] | None = None

    def put_new(self, key: str, body: bytes, *, sha256: str | None = None) -> bool:
        if self.late is None:
            self.late = key, body
            if self.is_written:
                super().put_new(key, body)
            raise StoreUnavailable("no answer")
        return super().put_new(key, body)


async def test_record_written_without_answer_is_the_batch() -> None:
    objects = DoubtfulStore()
    objects.is_written = True
    batches = batches_of(Rig(), objects)
    assert await _open_log(batches, record()) == record()
    assert [one.id for one in await batches.log.all_open()] == [record().id]
    batches.close_store()


async def test_record_written_after_rejection_creates_no_batch() -> None:
    objects = DoubtfulStore()
    batches = batches_of(Rig(), objects)
    with pytest.raises(StoreUnavailable):
        await _open_log(batches, record())
    assert objects.late is not None and not objects.put_new(*objects.late)
    latest = await batches.log.latest("acme", record().id)
    assert latest is not None and (latest.status, latest.errors[0].code) == ("failed", "not_created")
    assert not await batches.log.all_open()
    batches.close_store()


async def test_unavailable_store_gets_one_request() -> None:
    objects, asked = RangedStore(), list[str]()

    def raise_unavailable(key: str, body: bytes, *, sha256: str | None = None) -> None:
        asked.append(key)
        raise StoreUnavailable("gone")

    objects.put = raise_unavailable  # type: ignore[method-assign]
    batches = batches_of(Rig(), objects)
    with pytest.raises(StoreUnavailable):
        await _open_log(batches, record())
    assert asked == [names.marker_key("acme", record().id)]
    batches.close_store()


async def answered(
    rig: Rig, batches: Batches, method: str, path: str, *messages: dict[str, Any], query: bytes = b""
) -> tuple[int, bytes]:
    """Send these ASGI messages and return the answer's status and body."""
    waiting, said = list(messages), list[dict[str, Any]]()

    async def receive() -> dict[str, Any]:
        return waiting.pop(0) if waiting else {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        said.append(message)

    key = b"Bearer " + ACME_KEY.encode()
    headers = [(b"host", b"shoal"), (b"authorization", key), (b"content-type", b"application/json")]
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http",
        "path": path, "raw_path": path.encode(), "query_string": query, "root_path": "", "headers": headers,
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 2),
    }  # fmt: skip
    await make_app(rig.gateway, [partial(add_routes, batches)])(scope, receive, send)
    return said[0]["status"], b"".join(one.get("body", b"") for one in said[1:])


async def test_client_that_leaves_during_its_body_is_499() -> None:
    rig = Rig()
    batches = batches_of(rig, RangedStore())
    part = {"type": "http.request", "body": b"{", "more_body": True}
    status, _ = await answered(rig, batches, "POST", "/v1/batches", part)
    assert status == 499
    batches.close_store()


async def test_unreadable_log_answers_503_and_hides_no_other_batch() -> None:
    rig, objects = Rig(), RangedStore()
    batches = batches_of(rig, objects)
    objects.put(names.log_key("acme", record().id, 1), b"{")
    await batches.log.open(record(id=batch_id(1)))
    status, body = await answered(rig, batches, "GET", f"/v1/batches/{record().id}")
    assert status == 503 and b"storage_unavailable" in body
    status, body = await answered(rig, batches, "GET", "/v1/batches")
    assert status == 200 and body.count(b'"object":"batch"') == 1
    batches.close_store()


async def test_concurrent_listings_are_bounded_and_unknown_purposes_are_empty() -> None:
    rig = Rig()
    batches = batches_of(rig, RangedStore())
    with batches.listings.reserved("acme"), batches.listings.reserved("globex"):
        assert (await answered(rig, batches, "GET", "/v1/files"))[0] == 200
        with batches.listings.reserved("acme"):
            for path in ("/v1/files", "/v1/batches"):
                status, body = await answered(rig, batches, "GET", path)
                assert status == 429 and b"too_many_listings" in body
    assert (await answered(rig, batches, "GET", "/v1/batches"))[0] == 200
    status, body = await answered(rig, batches, "GET", "/v1/files", query=b"purpose=assistants")
    assert status == 200 and json.loads(body) == {
        "object": "list", "data": [], "has_more": False, "first_id": None, "last_id": None,
    }  # fmt: skip
    status, body = await answered(rig, batches, "GET", "/v1/files", query=b"limit=0")
    assert status == 400 and json.loads(body)["error"]["param"] == "limit" and b"greater than or equal to 1" in body
    assert (await answered(rig, batches, "GET", "/v1/files", query=b"purpose=batch_output"))[0] == 200
    batches.close_store()


class UnfitStore(RangedStore):
    """Store that overwrites on a conditional write, like one that does not know the header."""

    def ensure_bucket(self) -> None:
        """Do nothing: the bucket exists."""

    def put_new(self, key: str, body: bytes, *, sha256: str | None = None) -> bool:
        self.put(key, body)
        return True


async def test_batches_are_off_with_a_store_without_conditional_writes() -> None:
    rig, objects = Rig(), UnfitStore()
    batches = batches_of(rig, objects)
    await shared_of(batches).log.open(record())
    with pytest.raises(StoreUnfit, match="overwrites an existing object"):
        await batches._conduct()
    assert batches.conductor.running == 0 and not [key for key in objects.objects if "tried" in key]
    part = {"type": "http.request", "body": json.dumps(NEW_BATCH).encode()}
    status, body = await answered(rig, batches, "POST", "/v1/batches", part)
    assert status == 503 and b"batches_not_offered" in body
    batches.close_store()


async def test_client_writes_do_not_block_marker_writes() -> None:
    objects, free = RangedStore(), threading.Event()
    batches = batches_of(Rig(), objects)
    objects.before_new = lambda _: free.wait(60) and None
    writing = [asyncio.ensure_future(batches.store.put_new(f"x/{number}", b"")) for number in range(2 * THREADS)]
    try:
        async with asyncio.timeout(30):
            await shared_of(batches).log.touch(record(), BatchProgress("file"))
            assert await shared_of(batches).store.size_of(names.marker_key("acme", record().id))
        assert not any(one.done() for one in writing)
    finally:
        free.set()
        await asyncio.gather(*writing)
        batches.close_store()


async def test_files_expire_at_their_own_or_the_default_age() -> None:
    now_s = [1_000_000.0]
    batches = batches_of(Rig(), RangedStore())
    shelf = Shelf(batches.store, 30 * 24 * 3600.0, lambda: now_s[0])

    async def store_file(expiry_s: int | None) -> str:
        file_id = names.new_id("file", now_s[0])
        about = {"size_bytes": 1, "filename": "a", "purpose": "batch_output", "now_unix_s": now_s[0]}
        await shelf.save_record("acme", file_id, expiry_s=expiry_s, **about)  # type: ignore[arg-type]
        return file_id

    short, usual = await store_file(3600), await store_file(None)
    now_s[0] += 3599.0
    found = await shelf.find("acme", short)
    assert found is not None and found.file_object()["expires_at"] == 1_003_600
    now_s[0] += 1.0
    assert await shelf.find("acme", short) is None and await shelf.find("acme", usual) is not None
    batches.close_store()


@pytest.mark.parametrize("expiry", [{"anchor": "now", "seconds": 3600}, {"anchor": "created_at", "seconds": 1}, 5, {}])
def test_invalid_output_expiry_is_refused(expiry: Any) -> None:
    with pytest.raises((RequestRejected, msgspec.ValidationError)):
        _check_form(msgspec.convert({**NEW_BATCH, "output_expires_after": expiry}, BatchForm))
    asked = {**NEW_BATCH, "output_expires_after": {"anchor": "created_at", "seconds": 7200}}
    assert _check_form(msgspec.convert(asked, BatchForm)) == 24 * 3600
