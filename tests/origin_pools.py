"""httpx clients whose errors are the server's: a pool for each origin, and whose end closed a connection.

httpcore 1.0.9 may close a connection that it has given to a request already (encode/httpcore#1110): the request is read
as ReadError, as if the server had reset it. A pass over the pool has to find it expired a few turns of the loop after
it was given, behind another that is closed first; in a pool of one origin those before it are in use.
"""

import ssl

import anyio
import httpx


class PoolPerOrigin(httpx.AsyncBaseTransport):
    def __init__(self, verify: ssl.SSLContext | bool = True, limits: httpx.Limits | None = None) -> None:
        """`limits` are those of each pool."""
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
    """What an error came from, itself first. httpcore hides the cause of what it raises, not its context."""
    found: list[BaseException] = []
    following: BaseException | None = error
    while following is not None and following not in found:
        found.append(following)
        following = following.__cause__ or following.__context__
    return found


def closed_here(error: BaseException) -> bool:
    """The connection was closed by this process's own client."""
    return any(isinstance(each, anyio.ClosedResourceError) for each in chain(error))
