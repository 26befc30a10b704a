"""A fake fleet for the bench: engines on many ports in one process, with as little CPU time as Python allows.

Each port is one replica. It answers immediately, or streams in steps as an engine does: each step writes to all of its
streams. Every GET is answered with 200, so that routers find the replica healthy, and with the number of open
requests. A GET with a query changes the behaviour of the whole fleet (`Pace`). Run as a process:
`python -m loadtests.bench.engine EVENTS INTERVAL_MS PORT…`.
"""

import asyncio
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import parse_qsl, urlsplit

import httptools
import uvloop

_EVENT = (
    b'data: {"id":"chatcmpl-00000000000000000000000000000000","object":"chat.completion.chunk","created":1790000000,'
    b'"model":"acme/bench@sha256:abababababababab","choices":[{"index":0,"delta":{"content":" word"},"logprobs":null,'
    b'"finish_reason":null}],"system_fingerprint":"vllm-0.32.0"}\n\n'
)
# The same event with usage, which gateways request for each event (`continuous_usage_stats`).
_COUNTED_EVENT = _EVENT.replace(
    b',"system_fingerprint":"vllm-0.32.0"}',
    b',"usage":{"prompt_tokens":250,"total_tokens":280,"completion_tokens":30,"completion_tokens_details":null}}',
)
_USAGE = (
    b'data: {"id":"chatcmpl-0","object":"chat.completion.chunk","created":1790000000,"model":"acme/bench@sha256:'
    b'abababababababab","choices":[],"usage":{"prompt_tokens":250,"completion_tokens":64,"total_tokens":314}}\n\n'
)
_ANSWER_BODY = (
    b'{"id":"chatcmpl-0","object":"chat.completion","created":1790000000,"model":"acme/bench@sha256:abababababababab",'
    b'"choices":[{"index":0,"message":{"role":"assistant","content":"'
    + b"word "
    * 130
    + b'"},"finish_reason":"stop"}],'
    b'"usage":{"prompt_tokens":250,"completion_tokens":130,"total_tokens":380}}'
)
STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_STREAMS = (b'"stream":true', b'"stream": true')
_LOOKED_AT_BYTES = 1024  # searched at a body's start and at its end; `stream` is never in the middle of a prompt
_METADATA = {"is_generation": True, "status": "ok", "data": [{"id": "bench", "object": "model"}]}


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def _answer(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)


ANSWER = _answer(_ANSWER_BODY)
EVENT_CHUNK, COUNTED_CHUNK = _chunk(_EVENT), _chunk(_COUNTED_EVENT)
_LAST = _chunk(_USAGE) + _chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"


@dataclass(slots=True)
class Pace:
    """Behaviour of the streams of all ports."""

    events: int
    interval_ms: float
    prefill_ms: float = 0.0
    burst: int = 1  # events per write
    open: int = 0  # requests under way
    chunk: bytes = EVENT_CHUNK

    def change(self, query: dict[str, str]) -> None:
        self.events = int(float(query.get("events", self.events)))
        self.interval_ms = float(query.get("interval_ms", self.interval_ms))
        self.prefill_ms = float(query.get("prefill_ms", self.prefill_ms))
        self.burst = int(float(query.get("burst", self.burst)))
        self.chunk = _chunk(_EVENT * self.burst)


class Replica:
    """One port; each step writes to all of its streams."""

    def __init__(self, pace: Pace) -> None:
        self.pace = pace
        self._loop = asyncio.get_running_loop()
        self._streams: set[FakeEngine] = set()
        self._stepping = False

    def join(self, stream: "FakeEngine") -> None:
        self._streams.add(stream)
        if not self._stepping:
            self._stepping = True
            self._loop.call_later(self.pace.interval_ms / 1000, self._step)

    def leave(self, stream: "FakeEngine") -> None:
        self._streams.discard(stream)

    def _step(self) -> None:
        self._stepping = bool(self._streams)
        if self._stepping:  # the next step counts from now, so that late steps do not accumulate
            self._loop.call_later(self.pace.interval_ms / 1000, self._step)
        for stream in tuple(self._streams):
            stream.step()


class FakeEngine(asyncio.Protocol):
    __slots__ = ("_events_left", "_first", "_open", "_parser", "_paused", "_replica", "_tail", "_transport", "_url")

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._parser = httptools.HttpRequestParser(self)
        self._open = self._paused = False
        self._first = self._tail = self._url = b""
        self._events_left = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self._replica.leave(self)
        self._done()

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._transport.close()  # a router that tries HTTP/2

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False

    def on_message_begin(self) -> None:
        self._first = self._tail = self._url = b""

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_body(self, body: bytes) -> None:
        self._first = self._first or body[:_LOOKED_AT_BYTES]
        self._tail = (self._tail + body[-_LOOKED_AT_BYTES:])[-_LOOKED_AT_BYTES:]

    def on_message_complete(self) -> None:
        if self._parser.get_method() == b"GET":
            self._answer_get()
        elif any(mark in self._first or mark in self._tail for mark in _STREAMS):
            self._open = True
            self._replica.pace.open += 1
            prefill_ms = self._replica.pace.prefill_ms
            if prefill_ms:  # as in vLLM, the head is sent immediately and nothing else before the first token
                self._write(STREAM_HEAD)
                asyncio.get_running_loop().call_later(prefill_ms / 1000, self._begin_stream, b"")
            else:
                self._begin_stream(STREAM_HEAD)
        else:
            self._write(ANSWER)

    def step(self) -> None:
        if self._paused:
            return
        self._write(self._replica.pace.chunk)
        self._events_left -= self._replica.pace.burst
        if self._events_left <= 0:
            self._write(_LAST)
            self._replica.leave(self)
            self._done()

    def _begin_stream(self, head: bytes) -> None:
        if self._open:
            self._events_left = self._replica.pace.events
            self._write(head + self._replica.pace.chunk)
            self._replica.join(self)

    def _done(self) -> None:
        if self._open:
            self._open = False
            self._replica.pace.open -= 1

    def _answer_get(self) -> None:
        pace = self._replica.pace
        pace.change(dict(parse_qsl(urlsplit(self._url.decode()).query)))
        self._write(_answer(json.dumps(_METADATA | {"open": pace.open}).encode()))

    def _write(self, data: bytes) -> None:
        self._transport.write(data)  # type: ignore[attr-defined]


async def serve(ports: list[int], events: int, interval_ms: float) -> None:
    loop = asyncio.get_running_loop()
    pace = Pace(events, interval_ms)
    for port in ports:
        replica = Replica(pace)
        await loop.create_server(_maker(replica), "127.0.0.1", port, backlog=4096)
    await asyncio.Event().wait()


def _maker(replica: Replica) -> Callable[[], FakeEngine]:
    return lambda: FakeEngine(replica)


if __name__ == "__main__":
    uvloop.run(serve([int(port) for port in sys.argv[3:]], int(sys.argv[1]), float(sys.argv[2])))
