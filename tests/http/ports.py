"""Every HTTP port of shoal, served by its real process or by the server that the process uses."""

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
from tests.roles import RoleProcess

NOBODY = "valkey://127.0.0.1:9/0"
START_S = 90.0


@dataclass(frozen=True)
class Port:
    name: str
    number: int
    path: str  # path of a request without credentials
    status: int  # status of its answer
    pid: int | None = None  # pid of the port's process; None if it is served in the test's process
    tls: ssl.SSLContext | None = None
    crowd: int = 5  # connections of an attack with many: more than the port's limit if that is small


@contextlib.contextmanager
def processes(folder: Path, certificate: tuple[Path, Path]) -> Iterator[list[Port]]:
    """Run every process with an HTTP port, without reachable dependencies."""
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
        adapter_cache(folder) as cache,
        node_fetcher(folder) as fetcher,
        trace_store(folder) as traces,
    ):
        assert engine.running is not None and agent.running is not None
        gateway_pid, agent_pid = gateway_process.pid, agent.running.pid
        yield [
            *(cache, fetcher, traces),
            Port("gateway", gateway.plain_port, "/healthz", 200, gateway_pid),
            Port("gateway with TLS", gateway.port, "/healthz", 200, gateway_pid, trust),
            Port("gateway's metrics", gateway.metrics_port, "/metrics", 200, gateway_pid, crowd=40),
            Port("registry", registry_port, "/healthz", 200, registry_process.pid),
            Port("console", registry_port, "/console", 200, registry_process.pid),
            Port("agent", agent.port, "/healthz", 200, agent_pid, crowd=70),
            Port("agent, for peers", agent.peer_port, "/adapters/load", 401, agent_pid),
            Port("engine", engine.port, "/health", 200, engine.running.pid),
        ]


@contextlib.contextmanager
def adapter_cache(folder: Path) -> Iterator[Port]:
    """Run an adapter cache whose store is unavailable."""
    port = free_port()
    settings = {"LISTEN_PORT": port, **_of_a_store(folder), "CACHE_DIR": folder / "cache"}
    with _started("functions.replica.adapter_cache", "SHOAL_ADAPTER_CACHE_", settings, folder) as process:
        yield Port("adapter cache", port, "/readyz", 200, process.pid)


@contextlib.contextmanager
def node_fetcher(folder: Path) -> Iterator[Port]:
    """Run a node fetcher that waits for its store and serves chunks meanwhile."""
    port = free_port()
    settings = {"LISTEN_PORT": port, **_of_a_store(folder), "CACHE_DIR": folder / "fetched", "TIMEOUT_S": 3000}
    digest = "sha256:" + "0" * 64
    with _started("functions.replica.node_fetch", "SHOAL_NODE_FETCH_", settings, folder, digest) as process:
        yield Port("node fetcher", port, "/readyz", 503, process.pid)


@contextlib.contextmanager
def trace_store(folder: Path) -> Iterator[Port]:
    port = free_port()
    (folder / "traces-password").write_text("a password")
    settings = {"PORT": port, "DIRECTORY": folder / "traces", "PASSWORD_FILE": folder / "traces-password"}
    with _started("functions.telemetry.store", "SHOAL_TRACE_STORE_", settings, folder) as process:
        yield Port("trace store", port, "/ping", 200, process.pid)


def _of_a_store(folder: Path) -> dict[str, object]:
    credentials = folder / "s3.json"
    credentials.write_text('{"access_key_id": "a", "secret_access_key": "b"}')
    return {
        "INTERNAL_TOKEN_FILE": folder / "token",
        "S3_ENDPOINT_URL": "http://127.0.0.1:9",
        "S3_CREDENTIALS_FILE": credentials,
    }


@contextlib.contextmanager
def _started(
    module: str, prefix: str, settings: dict[str, object], folder: Path, *arguments: str
) -> Iterator[RoleProcess]:
    env = {f"{prefix}{name}": str(value) for name, value in settings.items()}
    with role(module, *arguments, log=folder / f"{module}.log", env=env) as process:
        yield process


@contextlib.asynccontextmanager
async def controller_ports() -> AsyncIterator[list[Port]]:
    """Serve the controller's health, metrics and webhook, because a complete controller would need an API server."""
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
