"""The agent as a process: its listener, its signals, and the order of its end.

SIGTERM drains: announce it, wait for the engine to be empty (or the timeout), send the last beat, exit. A second
SIGTERM, or SIGINT, does not wait. The routes answer until the end, so that whoever stops us can watch.
"""

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Iterator

import uvicorn

from functions.replica.agent import Agent, build
from functions.replica.settings import ReplicaSettings

_log = logging.getLogger(__name__)
_BACKLOG = 128


class StartFailed(Exception):
    """The agent cannot start as configured; the message says what to change."""


def run(settings: ReplicaSettings) -> None:
    """Serve until drained."""
    asyncio.run(_run(settings))


async def _run(settings: ReplicaSettings) -> None:
    agent = build(settings)
    listener = _bind(settings)
    server = _QuietServer(uvicorn.Config(agent.app, lifespan="off", log_config=None, access_log=False))
    asked, hurried = asyncio.Event(), asyncio.Event()
    _listen_for_signals(asked, hurried)
    agent.start()
    agent.tasks.once("drain and stop", _stop_when_asked(agent, server, asked, hurried))
    host, port = listener.getsockname()[:2]
    _log.info("agent of %s listens on %s:%d, engine at %s", settings.replica_id, host, port, settings.engine_url)
    await server.serve(sockets=[listener])
    await agent.stop()


class _QuietServer(uvicorn.Server):
    """uvicorn's server without its signal handlers: here a signal starts a drain, not an end."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _listen_for_signals(asked: asyncio.Event, hurried: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()

    def on_term() -> None:
        (hurried if asked.is_set() else asked).set()

    def on_int() -> None:
        asked.set()
        hurried.set()

    loop.add_signal_handler(signal.SIGTERM, on_term)
    loop.add_signal_handler(signal.SIGINT, on_int)


async def _stop_when_asked(agent: Agent, server: uvicorn.Server, asked: asyncio.Event, hurried: asyncio.Event) -> None:
    await asked.wait()
    agent.drain.begin("asked by a signal")
    done = await agent.drain.wait(until=hurried)
    _log.info("drained" if done else "stopping with requests left in the engine")
    server.should_exit = True


def _bind(settings: ReplicaSettings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.agent_host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.agent_host, settings.agent_port))
    except OSError as error:
        listener.close()
        raise StartFailed(
            f"cannot listen on {settings.agent_host}:{settings.agent_port}: {error.strerror}; "
            "free it or set SHOAL_REPLICA_AGENT_PORT"
        ) from error
    listener.listen(_BACKLOG)
    listener.setblocking(False)
    return listener
