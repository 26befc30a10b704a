"""The bench's client: streams and failures."""

import pytest

from loadtests.bench.load import HeldStream

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
EVENT = b'data: {"choices":[]}\n\n'


@pytest.mark.parametrize("reads", [(HEAD + EVENT,), (HEAD, EVENT), (HEAD, b": ping\n\n", EVENT)])
def test_a_head_may_come_long_before_its_first_event(reads: tuple[bytes, ...]) -> None:
    stream = HeldStream(b"")
    for read in reads:
        stream.data_received(read)
    stream.connection_lost(None)
    assert (stream.events, stream.failed) == (1, False)


@pytest.mark.parametrize("reads", [(b"HTTP/1.1 503 Busy\r\n\r\n",), (HEAD,), ()])
def test_a_refusal_and_a_stream_without_events_are_failures(reads: tuple[bytes, ...]) -> None:
    stream = HeldStream(b"")
    for read in reads:
        stream.data_received(read)
    stream.connection_lost(None)
    assert stream.failed
