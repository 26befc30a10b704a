"""httpx clients with a connection pool for each origin, so that every ReadError comes from the server.

httpcore 1.0.9 may close a connection that it has already assigned to a request (encode/httpcore#1110). The request then
fails with ReadError, as if the server had reset the connection. This happens if a pass over the pool finds the
connection expired a few turns of the loop after the assignment, behind another one that is closed first. In a pool of
one origin the connections before it are in use.
"""

import ssl

import anyio
import httpx


class PoolPerOrigin(httpx.AsyncBaseTransport):
    def __init__(self, verify: ssl.SSLContext | bool = True, limits: httpx.Limits | None = None) -> None:
        """Create the transport; `limits` apply to each pool."""
        self._verify, self._limits = verify, limits or httpx.Limits(max_connections=100, max_keepalive_connections=20)
        self._pools: dict[tuple[str, str, int | None], httpx.AsyncHTTPTransport] = {}

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        origin = request.url.scheme, request.url.host, request.url.port
        if origin not in self._pools:
            self._pools[origin] = httpx.AsyncHTTPTransport(self._verify, limits=self._limits, trust_env=False)
        return await self._pools[origin].handle_async_request(request)

    async def aclose(self) -> None:
        for pool in self._pools.values():
            await pool.aclose()


def chain(error: BaseException) -> list[BaseException]:
    """Return the error and its causes, itself first. httpcore removes the cause of its errors but not the context."""
    found: list[BaseException] = []
    following: BaseException | None = error
    while following is not None and following not in found:
        found.append(following)
        following = following.__cause__ or following.__context__
    return found


def closed_here(error: BaseException) -> bool:
    """Return True if this process's own client closed the connection."""
    return any(isinstance(each, anyio.ClosedResourceError) for each in chain(error))
