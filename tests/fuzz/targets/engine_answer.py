"""An engine's bytes on its connection, heads included: the client gets a complete answer or a closed connection.

The first byte selects streamed or unstreamed, the second the size of the segments. At the end the engine dies. No
callback of the connection may raise, because the event loop would then drop the connection and log an unexpected error.
"""

import asyncio
import atexit
from functools import cache

import orjson

from tests.fuzz.inputs import Input, segments
from tests.gateway.engine_rig import Play

DICTIONARY = (
    "HTTP/1.1 200 OK\r\n",
    "HTTP/1.1 503 X\r\nretry-after: 1\r\n",
    "HTTP/1.1 100 Continue\r\n\r\n",
    "HTTP/1.1 101 Switching\r\nupgrade: h2c\r\n\r\n",
    "content-type: text/event-stream\r\n",
    "content-type: application/json\r\n",
    "transfer-encoding: chunked\r\n",
    "content-length: ",
    "connection: close\r\n",
    "\r\n",
    "0\r\n\r\n",
    'data: {"choices":[{"delta":{}}]}\n\n',
    "data: [DONE]\n\n",
    '{"choices":[{"message":{"content":"x"}}],"usage":{"prompt_tokens":1,"completion_tokens":1}}',
)


@cache
def _loop() -> asyncio.Runner:
    runner = asyncio.Runner()
    atexit.register(runner.close)
    return runner


def check(data: bytes) -> None:
    _loop().run(_check(Input(data)))


async def _check(given: Input) -> None:
    play = Play("r0")
    is_stream, size = bool(given.byte() % 2), given.byte()
    play.ask(stream=is_stream)
    engine = await play.connects()
    for piece in segments(given.rest(), size):
        engine.sends(piece)
    if not engine.transport.closing:
        engine.dies()
    await play.settle()
    while play.dials:
        await play.refuses_connection()
        play.after(1.0)
    play.after(3600.0)
    await play.settle()
    client = play.client
    assert client.ended or client.was_cut, "the client waits for ever"
    if client.ended and client.status == 200 and is_stream:
        assert client.body.endswith(b"\n\n"), client.body
    elif client.ended:
        orjson.loads(client.body)
    assert play.quiet()
    await play.close()
