"""The agent as a process: its listener, its signals and the order of its shutdown.

SIGTERM drains: announce it, wait until the engine is empty (or the timeout), send the last heartbeat, exit. A second
SIGTERM, or SIGINT, skips the wait. The routes answer until the end, so that the supervisor can watch.
"""

import asyncio
import logging
import signal

import uvicorn

from functions.api.snapshot_document import SNAPSHOT_MAX_BYTES
from functions.artifacts.manifest import CHUNK_DEFAULT_BYTES
from functions.replica.agent import Agent, build
from functions.replica.chunk_routes import ChunkUploads
from functions.replica.listeners import (
    AGENT_BOUNDS,
    AGENT_CONNECTIONS,
    PEER_BOUNDS,
    PEER_CONNECTIONS,
    PeerServer,
    agent_server,
    bind,
)
from functions.replica.settings import ReplicaSettings
from functions.telemetry.memory import MIB, SNAPSHOT_FACTOR, Part, limit_bytes, warn_if_over

_BASE_BYTES = 110 * MIB  # measured: 95 MiB when idle, and the object store's client
_CONNECTION_BYTES = 16_000
_CHUNKS_ARRIVING = 8  # adapter chunks, which have the default size

_log = logging.getLogger(__name__)


def run(settings: ReplicaSettings) -> None:
    """Run the agent until a signal, and then until it is drained."""
    asyncio.run(_run(settings))


async def _run(settings: ReplicaSettings) -> None:
    warn_if_over(most_memory(), limit_bytes())
    agent = build(settings)
    listener = bind(settings.agent_host, settings.agent_port, "SHOAL_REPLICA_AGENT_PORT")
    peers = PeerServer(agent.peer_app, bind(settings.peer_host, settings.peer_port, "SHOAL_REPLICA_PEER_PORT"))
    agent.status.peer_port = peers.port
    server = agent_server(agent.app)
    asked, hurried = asyncio.Event(), asyncio.Event()
    _listen_for_signals(asked, hurried)
    agent.start()
    agent.tasks.once("peers", peers.run())
    agent.tasks.once("drain and stop", _stop_when_asked(agent, server, asked, hurried))
    host, port = listener.getsockname()[:2]
    _log.info(
        "agent of %s listens on %s:%d, for peers on port %d, engine at %s",
        settings.replica_id, host, port, peers.port, settings.engine_url,
    )  # fmt: skip
    await server.serve(sockets=[listener])
    peers.stop()
    await agent.stop()


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
    agent.drain.start("requested by a signal", is_final=True)
    done = await agent.drain.wait(until=hurried)
    _log.info("drained" if done else "stopping with requests left in the engine")
    server.should_exit = True


def most_memory(snapshot_bytes: int = SNAPSHOT_MAX_BYTES) -> list[Part]:
    """Return an agent's memory by part if every bound of its ports, snapshot and transfers is reached at the same
    time."""
    bodies = AGENT_CONNECTIONS * (AGENT_BOUNDS.body_bytes or 0) + PEER_CONNECTIONS * (PEER_BOUNDS.body_bytes or 0)
    return [
        Part("the process", _BASE_BYTES),
        Part("connections", (AGENT_CONNECTIONS + PEER_CONNECTIONS) * _CONNECTION_BYTES + bodies),
        Part("snapshots, old and new", snapshot_bytes * (2 * SNAPSHOT_FACTOR + 1)),
        Part("chunks", (ChunkUploads().max_uploads + _CHUNKS_ARRIVING) * CHUNK_DEFAULT_BYTES),
    ]
