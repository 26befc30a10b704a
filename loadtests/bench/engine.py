"""A fake engine for the bench: answers at once, or streams events on a timer, and costs as little as Python allows.

It decides by the path's query nothing and by the body one thing: whether `"stream":true` is in it. Run as a process:
`python -m loadtests.bench.engine PORT EVENTS INTERVAL_MS`.
"""

import asyncio
import sys

import httptools
import uvloop

_MODEL = b"bench"
_EVENT = (
    b'data: {"id":"chatcmpl-00000000000000000000000000000000","object":"chat.completion.chunk","created":1790000000,'
    b'"model":"acme/bench@sha256:abababababababab","choices":[{"index":0,"delta":{"content":" word"},"logprobs":null,'
    b'"finish_reason":null}],"system_fingerprint":"vllm-0.32.0"}\n\n'
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
_STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


_ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (
    len(_ANSWER_BODY),
    _ANSWER_BODY,
)
_EVENT_CHUNK = _chunk(_EVENT)
_LAST = _chunk(_USAGE) + _chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"


class FakeEngine(asyncio.Protocol):
    def __init__(self, events: int, interval_s: float) -> None:
        self._events, self._interval_s = events, interval_s
        self._parser = httptools.HttpRequestParser(self)
        self._loop = asyncio.get_running_loop()
        self._stream = False
        self._left = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_begin(self) -> None:
        self._stream = False

    def on_body(self, body: bytes) -> None:
        self._stream = self._stream or b'"stream":true' in body

    def on_message_complete(self) -> None:
        if not self._stream:
            self._transport.write(_ANSWER)  # type: ignore[attr-defined]
            return
        self._left = self._events
        self._transport.write(_STREAM_HEAD + _EVENT_CHUNK)  # type: ignore[attr-defined]
        self._loop.call_later(self._interval_s, self._next)

    def _next(self) -> None:
        if self._transport.is_closing():
            return
        self._left -= 1
        if self._left <= 0:
            self._transport.write(_LAST)  # type: ignore[attr-defined]
            return
        self._transport.write(_EVENT_CHUNK)  # type: ignore[attr-defined]
        self._loop.call_later(self._interval_s, self._next)


async def serve(port: int, events: int, interval_s: float) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: FakeEngine(events, interval_s), "127.0.0.1", port, backlog=4096)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]) / 1000))
