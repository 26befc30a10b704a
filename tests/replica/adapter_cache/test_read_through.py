"""One read of the store for all simultaneous requests, and the cache's routes."""

import asyncio
import hashlib
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from functions.artifacts.errors import ArtifactCorrupt, ArtifactMissing, StoreUnavailable
from functions.replica.adapter_cache import read_through
from functions.replica.adapter_cache.app import make_app
from functions.replica.adapter_cache.objects import CachedObjects
from functions.replica.adapter_cache.read_through import ReadThrough, TooBusy

A = b"a" * 100
NAME = hashlib.sha256(A).hexdigest()


class Store:
    """Store that answers once the test releases it, and counts reads."""

    def __init__(self, content: bytes = A) -> None:
        self.content, self.reads, self.may_answer = content, 0, threading.Event()
        self.error: Exception | None = None
        self.may_answer.set()

    def read_small(self, key: str, max_bytes: int) -> bytes:
        assert key == f"chunks/sha256/{NAME}" or self.error is not None
        self.reads += 1
        assert self.may_answer.wait(10)
        if self.error is not None:
            raise self.error
        return self.content

    def stream(self, key: str, max_bytes: int) -> Iterator[bytes]:
        yield self.read_small(key, max_bytes)


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def cache(store: Store, tmp_path: Path) -> ReadThrough:
    objects = CachedObjects(tmp_path, 10_000)
    objects.open()
    return ReadThrough(objects, store)


async def test_simultaneous_requests_cost_one_store_read(store: Store, cache: ReadThrough) -> None:
    store.may_answer.clear()
    asked = [asyncio.ensure_future(cache.get("chunks", NAME)) for _ in range(20)]
    while cache.results["joined"] < 19:
        await asyncio.sleep(0.01)  # let the disk threads run
    store.may_answer.set()
    assert await asyncio.gather(*asked) == [A] * 20
    assert await cache.get("chunks", NAME) == A
    assert store.reads == 1
    assert cache.results == {"miss": 1, "joined": 19, "hit": 1}
    assert cache.store_bytes_total == len(A)


async def test_cancelled_request_does_not_affect_waiting_ones(store: Store, cache: ReadThrough) -> None:
    store.may_answer.clear()
    first = asyncio.ensure_future(cache.get("chunks", NAME))
    while not store.reads:
        await asyncio.sleep(0.01)
    second = asyncio.ensure_future(cache.get("chunks", NAME))
    while not cache.results["joined"]:
        await asyncio.sleep(0.01)
    first.cancel()
    store.may_answer.set()
    assert await second == A
    assert store.reads == 1


async def test_failure_is_reported_and_not_cached(store: Store, cache: ReadThrough) -> None:
    store.error = StoreUnavailable("away")
    with pytest.raises(StoreUnavailable):
        await cache.get("chunks", NAME)
    store.error = None
    assert await cache.get("chunks", NAME) == A
    store.content = b"something else"
    other = hashlib.sha256(b"other").hexdigest()
    store.error = ArtifactMissing("not there")
    with pytest.raises(ArtifactMissing):
        await cache.get("manifests", other)
    assert cache.results["failed"] == 2


async def test_content_with_a_wrong_hash_is_not_served(store: Store, cache: ReadThrough) -> None:
    store.content = b"something else"
    with pytest.raises(ArtifactCorrupt):
        await cache.get("chunks", NAME)
    assert len(cache.objects) == 0


async def test_requests_over_the_limit_go_to_the_store(
    store: Store, cache: ReadThrough, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_through, "MAX_WAITING", 1)
    store.may_answer.clear()
    first = asyncio.ensure_future(cache.get("chunks", NAME))
    while not store.reads:
        await asyncio.sleep(0.01)
    with pytest.raises(TooBusy):
        await cache.get("chunks", "0" * 64)
    store.may_answer.set()
    assert await first == A
    await cache.close()


async def test_the_routes(store: Store, cache: ReadThrough) -> None:
    app = make_app(cache, lambda path: ("secret",), max_answers=1)
    transport = httpx.ASGITransport(app)  # type: ignore[arg-type]
    async with httpx.AsyncClient(transport=transport, base_url="http://cache") as client:
        assert (await client.get("/readyz")).status_code == 200
        assert (await client.get(f"/objects/chunks/{NAME}")).status_code == 401
        assert (await client.get("/nothing")).status_code == 401
        client.headers["authorization"] = "Bearer secret"
        for _ in range(3):  # the single place for an answer is free again after each request
            answer = await client.get(f"/objects/chunks/{NAME}")
            assert (answer.status_code, answer.content) == (200, A)
        assert (await client.get("/objects/secrets/" + NAME)).status_code == 422
        assert (await client.get("/objects/chunks/../../etc/passwd")).status_code in (404, 422)
        store.error = ArtifactMissing("not there")
        assert (await client.get("/objects/manifests/" + NAME)).status_code == 404
        store.error = StoreUnavailable("away")
        told = await client.get("/objects/manifests/" + NAME)
        assert (told.status_code, told.headers["retry-after"]) == (503, "1")
        store.error = None
        assert (await client.get(f"/objects/chunks/{NAME}")).status_code == 200
        page = (await client.get("/metrics")).text
        assert 'shoal_region_cache_requests_total{result="hit"} 3.0' in page
        assert "shoal_region_cache_bytes 100.0" in page
