"""A store that fails, sends wrong data or stalls: StoreUnavailable in bounded time, and received chunks are kept."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from functions.artifacts.cache import ArtifactCache
from functions.artifacts.errors import ArtifactCorrupt, StoreUnavailable
from functions.artifacts.fetch import fetch
from functions.artifacts.locations import chunk_key, manifest_key
from functions.artifacts.manifest import hex_of
from functions.artifacts.s3 import S3Settings, S3Store
from tests.artifacts.conftest import CREDENTIALS
from tests.artifacts.test_assembly import Source, source
from tests.ports import free_ports

pytestmark = pytest.mark.servers

Answer = Callable[[BaseHTTPRequestHandler], None]


@contextmanager
def store_that(answer: Answer, *, max_attempts: int = 1, read_timeout_s: float = 60.0) -> Iterator[S3Store]:
    """Yield a client of an HTTP server that answers every GET with `answer`."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            answer(self)

        def log_message(self, *arguments: object) -> None:
            """Write no log."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    store = S3Store(
        S3Settings(
            f"http://127.0.0.1:{server.server_address[1]}",
            CREDENTIALS,
            max_attempts=max_attempts,
            connect_timeout_s=30.0,
            read_timeout_s=read_timeout_s,
        )
    )
    try:
        yield store
    finally:
        store.close()
        server.shutdown()
        server.server_close()
        thread.join()


def whole(handler: BaseHTTPRequestHandler, body: bytes, *, sent: int | None = None, status: int = 200) -> None:
    handler.send_response(status)
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body[:sent])
    if sent is not None:
        handler.close_connection = True


def slow_down(handler: BaseHTTPRequestHandler) -> None:
    whole(handler, b"<Error><Code>SlowDown</Code><Message>reduce your rate</Message></Error>", status=503)


def no_xml(handler: BaseHTTPRequestHandler) -> None:
    whole(handler, b"<html>a proxy's page", status=502)


def cut_off(handler: BaseHTTPRequestHandler) -> None:
    whole(handler, bytes(100_000), sent=50_000)


def hang_up(handler: BaseHTTPRequestHandler) -> None:
    handler.close_connection = True


def stall(handler: BaseHTTPRequestHandler) -> None:
    """Send headers, then nothing until the client disconnects."""
    handler.send_response(200)
    handler.send_header("Content-Length", "100000")
    handler.end_headers()
    handler.rfile.read(1)


@pytest.mark.parametrize(
    ("answer", "read_timeout_s"), [(slow_down, 60.0), (no_xml, 60.0), (cut_off, 60.0), (hang_up, 60.0), (stall, 1.0)]
)
def test_a_broken_answer_is_an_unavailable_store(answer: Answer, read_timeout_s: float) -> None:
    words = "the store failed on some/key"
    with store_that(answer, read_timeout_s=read_timeout_s) as store, pytest.raises(StoreUnavailable, match=words):
        store.read_small("some/key", 1_000_000)


def test_an_endless_answer_is_cut_off() -> None:
    def endless(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", str(2**40))
        handler.end_headers()
        try:
            while True:
                handler.wfile.write(bytes(100_000))
        except OSError:
            handler.close_connection = True

    with store_that(endless) as store, pytest.raises(ArtifactCorrupt, match="more than the 1000000 bytes"):
        store.read_small("some/key", 1_000_000)


def test_a_store_that_is_not_there_is_unavailable() -> None:
    store = S3Store(S3Settings(f"http://127.0.0.1:{free_ports(1)[0]}", CREDENTIALS, max_attempts=1))
    with pytest.raises(StoreUnavailable):
        list(store.list("chunks/"))
    with pytest.raises(StoreUnavailable):
        store.delete(["a"])
    with pytest.raises(StoreUnavailable):
        store.put_new("a", b"1")
    store.close()


class Serving:
    """Server of one artifact's objects; keys in `broken` get the answer set there."""

    def __init__(self, made: Source) -> None:
        self.objects = {f"/shoal-models/{manifest_key(hex_of(made.digest))}": made.document}
        self.objects |= {
            f"/shoal-models/{chunk_key(chunk.sha256)}": made.read(chunk) for chunk in made.manifest.chunks()
        }
        self.broken: dict[str, list[Answer]] = {}
        self.asked: list[str] = []

    def __call__(self, handler: BaseHTTPRequestHandler) -> None:
        self.asked.append(handler.path)
        if answers := self.broken.get(handler.path):
            answers.pop(0)(handler)
        else:
            whole(handler, self.objects[handler.path])


def flipped(handler: BaseHTTPRequestHandler) -> None:
    whole(handler, bytes(1000))


def test_a_chunk_that_arrives_corrupt_is_read_once_more(tmp_path: Path) -> None:
    made = source(seed=50)
    serving = Serving(made)
    last = f"/shoal-models/{chunk_key(made.manifest.distinct_chunks()[-1].sha256)}"
    serving.broken[last] = [flipped]
    with store_that(serving) as store:
        assert fetch(store, ArtifactCache(tmp_path), made.digest).is_dir()
    assert serving.asked.count(last) == 2
    assert len(serving.asked) == 6  # the manifest, four chunks, and one of them again


def test_outage_keeps_received_chunks(tmp_path: Path) -> None:
    made = source(seed=51)
    serving, cache = Serving(made), ArtifactCache(tmp_path)
    last = f"/shoal-models/{chunk_key(made.manifest.distinct_chunks()[-1].sha256)}"
    serving.broken[last] = [slow_down]
    with store_that(serving) as store:
        with pytest.raises(StoreUnavailable):
            fetch(store, cache, made.digest)
        assert not cache.held(made.digest)
        there = made.open(cache).have.count(1)
        serving.asked.clear()
        assert fetch(store, cache, made.digest).is_dir()
    assert len(serving.asked) == 1 + 4 - there
