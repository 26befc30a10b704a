"""Reading from servers that are silent, broken or hostile: each end has its own error, and every wait is bounded."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from kubernetes.client import Configuration

from functions.controller.kubernetes.errors import Gone, KindMissing, Retryable
from functions.controller.kubernetes.run import watch_client
from functions.controller.kubernetes.run.client import connect
from functions.controller.kubernetes.run.watch_client import Cut, WatchClient

WAIT_S = 60.0


@contextmanager
def answering(status: str, *chunks: bytes, then_silence: bool = False) -> Iterator[WatchClient]:
    """Run a server with one answer, sent in chunks, then ended or held open."""
    listener = socket.create_server(("127.0.0.1", 0))
    over = threading.Event()

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\n".encode())
            connection.sendall(b"transfer-encoding: chunked\r\n\r\n")
            for chunk in chunks:
                connection.sendall(f"{len(chunk):x}\r\n".encode() + chunk + b"\r\n")
            if then_silence:
                over.wait(WAIT_S)
            else:
                connection.sendall(b"0\r\n\r\n")

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield WatchClient(connect(Configuration(host=f"http://127.0.0.1:{listener.getsockname()[1]}")).client)
    finally:
        over.set()
        thread.join(WAIT_S)
        listener.close()


def read(client: WatchClient, silence_s: float = WAIT_S) -> list[str]:
    return [event["type"] for event in client.events("/api/v1/things", {}, silence_s, lambda _cut: None)]


def test_events_split_at_any_byte_are_read() -> None:
    with answering("200 OK", b'{"type":"ADD', b'ED"}\n{"type":"BOOKMARK"}', b"\n\n") as client:
        assert read(client) == ["ADDED", "BOOKMARK"]


def test_silent_watch_times_out() -> None:
    with answering("200 OK", b'{"type":"ADDED"}\n', then_silence=True) as client:
        events = client.events("/api/v1/things", {}, 0.3, lambda _cut: None)
        assert [event["type"] for event in events] == ["ADDED"], "it ends, and another one may begin"


def test_watch_can_be_ended_from_another_thread() -> None:
    cuts: list[Cut] = []
    with answering("200 OK", b'{"type":"ADDED"}\n', then_silence=True) as client:
        events = client.events("/api/v1/things", {}, WAIT_S, cuts.append)
        next(events)
        threading.Timer(0.2, cuts[0]).start()
        with pytest.raises(Retryable):
            next(events)


@pytest.mark.parametrize(
    ("status", "body", "error"),
    [
        ("410 Gone", b'{"reason":"Expired","message":"too old"}', Gone),
        ("404 Not Found", b"404 page not found", KindMissing),
        ("500 Internal", b"<html>", Retryable),
        ("403 Forbidden", b'{"message":"no"}', Retryable),
        ("200 OK", b'{"type":"ERROR","object":{"code":410,"message":"too old resource version"}}\n', Gone),
        ("200 OK", b'{"type":"ERROR","object":{"code":500,"message":"etcd"}}\n', Retryable),
        ("200 OK", b"not json\n", Retryable),
        ("200 OK", b"[]\n", Retryable),
        ("200 OK", b'"\xff"\n', Retryable),
    ],
)
def test_each_end_of_a_watch_has_its_own_error(status: str, body: bytes, error: type[Exception]) -> None:
    with answering(status, body) as client, pytest.raises(error):
        read(client)


def test_an_event_without_an_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch_client, "LINE_MAX_BYTES", 1000)
    with (
        answering("200 OK", b"x" * 2000, then_silence=True) as client,
        pytest.raises(Retryable, match="more than 1000"),
    ):
        read(client)


def test_a_page_that_is_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch_client, "PAGE_MAX_BYTES", 1000)
    body = b'{"items":[' + b" " * 2000 + b"]}"
    with answering("200 OK", body) as client, pytest.raises(Retryable, match="more than 1000"):
        client.page("/api/v1/things", {}, WAIT_S)


def test_refused_watch_connection_is_retryable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    client = WatchClient(connect(Configuration(host=f"http://127.0.0.1:{port}")).client)
    with pytest.raises(Retryable):
        client.page("/api/v1/things", {}, WAIT_S)
