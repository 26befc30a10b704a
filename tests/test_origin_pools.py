"""Connections closed by httpx's shared pool, which look like resets by the server, and pools for each origin."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import httpcore
import httpx
import pytest

from tests.origin_pools import PoolPerOrigin, closed_here

_TURNS = 6  # most turns of the loop between the assignment of a connection and the pass that finds it expired
_LIMITS = httpx.Limits(keepalive_expiry=600.0)


class _Answers(asyncio.Protocol):
    """A server that answers and never closes."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if data.endswith(b"\r\n\r\n"):  # a little later, so that concurrent requests need a connection each
            answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
            asyncio.get_running_loop().call_later(0.02, self.transport.write, answer)


class _Resets(_Answers):
    def data_received(self, data: bytes) -> None:
        sock: socket.socket = self.transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()


@asynccontextmanager
async def _serving(protocol: type[asyncio.Protocol]) -> AsyncIterator[str]:
    server = await asyncio.get_running_loop().create_server(protocol, "127.0.0.1", 0)
    yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    server.close()


def _expire(pools: list[httpcore.AsyncConnectionPool]) -> None:
    """Mark all idle connections as expired, as after `keepalive_expiry`."""
    for pool in pools:
        for connection in pool.connections:
            if connection.is_idle():
                connection._connection._expire_at = 0.0  # type: ignore[attr-defined]


async def _errors(
    transport_of: Callable[[], httpx.AsyncBaseTransport], pools_of: Callable[[Any], list[httpcore.AsyncConnectionPool]]
) -> list[httpx.HTTPError]:
    """Return the errors of requests to one origin, whose connections expire while the other's are closed."""
    found: list[httpx.HTTPError] = []
    async with _serving(_Answers) as one, _serving(_Answers) as other:
        for turns in range(_TURNS):
            async with httpx.AsyncClient(transport=(transport := transport_of())) as client:
                await asyncio.gather(client.get(other), client.get(one))
                asked = asyncio.create_task(client.get(one))
                for _ in range(turns):
                    await asyncio.sleep(0)
                _expire(pools_of(transport))
                outcomes = await asyncio.gather(asked, client.get(other), return_exceptions=True)
            assert all(isinstance(each, httpx.HTTPError | httpx.Response) for each in outcomes), outcomes
            found += [each for each in outcomes if isinstance(each, httpx.HTTPError)]
    return found


async def test_httpx_closes_a_connection_that_it_gave_to_a_request() -> None:
    """If this fails, httpcore is fixed (encode/httpcore#1110) and `PoolPerOrigin` can be removed."""
    errors = await _errors(lambda: httpx.AsyncHTTPTransport(limits=_LIMITS), lambda transport: [transport._pool])
    assert errors
    assert all(isinstance(each, httpx.ReadError) and closed_here(each) for each in errors)


async def test_a_pool_for_each_origin_closes_none_that_is_in_use() -> None:
    assert not await _errors(
        lambda: PoolPerOrigin(limits=_LIMITS), lambda transport: [each._pool for each in transport._pools.values()]
    )


async def test_server_reset_is_not_closed_here() -> None:
    async with _serving(_Resets) as url, httpx.AsyncClient(transport=PoolPerOrigin()) as client:
        with pytest.raises(httpx.ReadError) as raised:
            await client.get(url)
    assert not closed_here(raised.value)
