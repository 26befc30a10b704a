"""The listener for gateways and other agents, beside the agent's own: another address, another port, a token.

It begins with the agent and outlives a drain, since peers may still want chunks of what lies here; loads are refused
then by the reconciler.
"""

import socket

import uvicorn
from starlette.types import ASGIApp

from functions.replica.listening import QuietServer
from functions.replica.timed_http import TimedHttp

_KEEP_ALIVE_S = 30
_CLOSE_WITHIN_S = 2


class PeerServer:
    """Started and stopped with the agent, on its loop."""

    def __init__(self, app: ASGIApp, listener: socket.socket) -> None:
        self._listener = listener
        self._server = QuietServer(
            uvicorn.Config(
                app,
                http=TimedHttp,
                ws="none",  # an upgrade would be answered before the token is asked for
                lifespan="off",
                log_config=None,
                access_log=False,
                timeout_keep_alive=_KEEP_ALIVE_S,
                timeout_graceful_shutdown=_CLOSE_WITHIN_S,
            )
        )

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    async def run(self) -> None:
        """Until `stop`."""
        await self._server.serve(sockets=[self._listener])

    def stop(self) -> None:
        self._server.should_exit = True
