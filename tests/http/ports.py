"""Every HTTP port of ours, served as it really is: by its process, or by what the process serves it with."""

import asyncio
import contextlib
import os
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

from prometheus_client import CollectorRegistry

from functions.controller.kubernetes.run.webhook import PATH, Webhook
from functions.telemetry.exposition import MetricsServer
from tests.gateway.processes import GatewayProcess
from tests.ports import free_port
from tests.replica.processes import AgentProcess, Engine, role

NOBODY = "valkey://127.0.0.1:9/0"
START_S = 90.0


@dataclass(frozen=True)
class Port:
    name: str
    number: int
    path: str  # of a request that anybody may make
    status: int  # what that is answered with
    pid: int | None = None  # of its process, where it has one of its own
    tls: ssl.SSLContext | None = None
    crowd: int = 5  # connections of an attack that needs many: more than its bound, where that is small


@contextlib.contextmanager
def processes(folder: Path, certificate: tuple[Path, Path]) -> Iterator[list[Port]]:
    """Gateway, registry, agent and simulated engine, without anybody behind them."""
    trust = ssl.create_default_context(cafile=str(certificate[0]))
    gateway = GatewayProcess(folder, NOBODY, certificate)
    engine = Engine(folder)
    agent = AgentProcess(folder, engine, NOBODY)
    registry_port = free_port()
    registry = {
        "PORT": registry_port,
        "INTERNAL_TOKEN_FILE": folder / "token",
        "STATE_DIR": folder / "state",
        "BUS_URL": NOBODY,
        "PEPPER_FILE": folder / "pepper",
    }
    env = {f"SHOAL_REGISTRY_{name}": str(value) for name, value in registry.items()}
    with (
        gateway.start() as gateway_process,
        role("functions.registry", log=folder / "registry.log", env=env) as registry_process,
        engine.run(),
        agent.run(),
    ):
        assert engine.running is not None and agent.running is not None
        gateway_pid, agent_pid = gateway_process.pid, agent.running.pid
        yield [
            Port("gateway", gateway.plain_port, "/healthz", 200, gateway_pid),
            Port("gateway with TLS", gateway.port, "/healthz", 200, gateway_pid, trust),
            Port("gateway's metrics", gateway.metrics_port, "/metrics", 200, gateway_pid, crowd=40),
            Port("registry", registry_port, "/healthz", 200, registry_process.pid),
            Port("console", registry_port, "/console", 200, registry_process.pid),
            Port("agent", agent.port, "/healthz", 200, agent_pid, crowd=70),
            Port("agent, for peers", agent.peer_port, "/adapters/load", 401, agent_pid),
            Port("engine", engine.port, "/health", 200, engine.running.pid),
        ]


@contextlib.asynccontextmanager
async def controller_ports() -> AsyncIterator[list[Port]]:
    """Health and metrics, and the webhook, which a whole controller would need an API server for."""
    listener = socket.create_server(("127.0.0.1", 0))
    health = listener.getsockname()[1]
    loop = asyncio.get_running_loop()
    server = MetricsServer(listener, CollectorRegistry(), lambda: None, loop, {"/healthz": lambda: ""})
    server.start()
    webhook = await Webhook(b"a secret of a git server", "main", lambda: None).listen("127.0.0.1", 0)
    hook = webhook.sockets[0].getsockname()[1]
    try:
        yield [
            Port("controller's health", health, "/healthz", 200, crowd=40),
            Port("webhook", hook, PATH, 405, crowd=70),
        ]
    finally:
        webhook.close()
        await asyncio.to_thread(server.close)


def resident_bytes(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
