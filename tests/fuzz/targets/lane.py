"""Bytes of a client on one connection, through the fast lane and uvicorn behind it: no answer is an internal error.

The first byte selects the size of the segments. The engine never answers here, so an admitted request waits.
"""

import asyncio
import atexit
from functools import cache

from tests.fuzz.inputs import Input, segments
from tests.gateway.client_rig import Connection, Server, read_answers
from tests.gateway.engine_rig import Play
from tests.gateway.rig import ACME_KEY

DICTIONARY = (
    "POST /v1/chat/completions HTTP/1.1\r\n",
    "POST /v1/completions HTTP/1.1\r\n",
    "GET /v1/models HTTP/1.1\r\n",
    "Host: a\r\n",
    "Content-Type: application/json\r\n",
    "Content-Length: ",
    "Transfer-Encoding: chunked\r\n",
    "Expect: 100-continue\r\n",
    "Connection: close\r\n",
    "Upgrade: h2c\r\n",
    f"Authorization: Bearer {ACME_KEY}\r\n",
    "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "\r\n\r\n",
    "0\r\n\r\n",
)
_PER_WORLD = 200  # inputs until a new gateway resets limits and figures


@cache
def _loop() -> asyncio.Runner:
    runner = asyncio.Runner()
    atexit.register(runner.close)
    return runner


class _Rig:
    """A gateway for some inputs, because creating one costs as much as twenty inputs."""

    def __init__(self) -> None:
        self.left = 0

    async def connection(self) -> Connection:
        if self.left == 0:
            self._play = Play("r0")
            self._server = Server(self._play)
            self.left = _PER_WORLD
        self.left -= 1
        return Connection(self._play, self._server)


_rig = _Rig()


def check(data: bytes) -> None:
    _loop().run(_check(Input(data)))


async def _check(given: Input) -> None:
    connection = await _rig.connection()
    size = given.byte()
    for piece in segments(given.rest(), size):
        connection >> piece
    await connection.play.settle()
    for answer in read_answers(bytes(connection.transport.got)):
        assert answer.status < 500 or answer.code in {"no_capacity", "overloaded"}, answer
    connection.leaves()
    await connection.play.settle()
    for _, dial in connection.play.dials:
        dial.cancel()
    connection.play.dials.clear()
    await connection.play.settle()
    assert not connection.play.gateway.services.connections, "a connection that left is still counted"
    assert connection.play.quiet(), "a request outlives its client"
