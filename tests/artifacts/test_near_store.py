"""A store behind the region's cache: requests go to the right place, and a bad cache costs no artifact."""

import hashlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from functions.artifacts.near_store import AWAY_S, NearStore

CONTENT = b"the content of a chunk"
NAME = hashlib.sha256(CONTENT).hexdigest()
KEY = f"chunks/sha256/{NAME}"


class Store:
    def __init__(self) -> None:
        self.reads: list[str] = []

    def read_small(self, key: str, max_bytes: int) -> bytes:
        return b"".join(self.stream(key, max_bytes))

    def stream(self, key: str, max_bytes: int) -> Iterator[bytes]:
        self.reads.append(key)
        yield CONTENT


class Cache:
    """Next answer of the region's cache, and the requests it received."""

    def __init__(self) -> None:
        self.status, self.content = 200, CONTENT
        self.asked: list[tuple[str, str]] = []
        self.url = ""


@contextmanager
def listening(cache: Cache) -> Iterator[Cache]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            cache.asked.append((self.path, str(self.headers["authorization"])))
            self.send_response(cache.status)
            self.send_header("content-length", str(len(cache.content)))
            self.end_headers()
            self.wfile.write(cache.content)

        def log_request(self, *_: Any) -> None:
            """Write no log."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    cache.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield cache
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def cache() -> Iterator[Cache]:
    with listening(Cache()) as found:
        yield found


@pytest.fixture
def near() -> Iterator[Callable[..., NearStore]]:
    made: list[NearStore] = []

    def make_near_store(cache: Cache, store: Store, clock: Callable[[], float] = lambda: 0.0) -> NearStore:
        made.append(NearStore(store, cache.url + "/", lambda: "secret", clock))
        return made[-1]

    yield make_near_store
    for each in made:
        each.close()


Near = Callable[[Cache, Store], NearStore]


def test_content_comes_from_the_cache_and_all_else_from_the_store(cache: Cache, near: Near) -> None:
    store = Store()
    both = near(cache, store)
    assert both.read_small(KEY, 1000) == CONTENT
    assert cache.asked == [(f"/objects/chunks/{NAME}", "Bearer secret")]
    assert store.reads == []
    assert both.read_small("acme/bot/v1/shoal-manifest.json", 1000) == CONTENT
    assert store.reads == ["acme/bot/v1/shoal-manifest.json"]
    assert both.reads == {"cache": 1, "store": 1}


@pytest.mark.parametrize(("status", "content"), [(404, b"{}"), (503, b"{}"), (401, b"{}"), (200, b"something else")])
def test_missing_or_wrong_cache_content_comes_from_the_store(
    cache: Cache, near: Near, status: int, content: bytes
) -> None:
    cache.status, cache.content = status, content
    store = Store()
    both = near(cache, store)
    assert both.read_small(KEY, 1000) == CONTENT
    assert both.read_small(KEY, 1000) == CONTENT
    assert len(cache.asked) == 2, "it answers: it is asked again"
    assert store.reads == [KEY, KEY]


def test_oversized_cache_answer_is_rejected(cache: Cache, near: Near) -> None:
    cache.content = b"x" * 100_000
    assert near(cache, Store()).read_small(KEY, 1000) == CONTENT


def test_unavailable_cache_is_skipped_for_a_while(near: Callable[..., NearStore]) -> None:
    now_s = [0.0]
    gone = Cache()
    with listening(gone):
        pass
    store = Store()
    both = near(gone, store, lambda: now_s[0])
    assert both.read_small(KEY, 1000) == CONTENT
    with listening(Cache()) as back:
        both._url = back.url
        now_s[0] = AWAY_S - 1
        assert both.read_small(KEY, 1000) == CONTENT
        assert back.asked == []
        now_s[0] = AWAY_S
        assert both.read_small(KEY, 1000) == CONTENT
        assert len(back.asked) == 1
    assert len(store.reads) == 2
