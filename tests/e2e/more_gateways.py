"""More gateways beside a fleet's own, with the same settings but their own ports and state, as in a cluster.

`Front` sends each request to a random gateway, like a load balancer that ignores conversations.
"""

import random
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil
from prometheus_client.parser import text_string_to_metric_families

from tests.fleets import ANSWER_S, Fleet, wait_until
from tests.ports import free_port
from tests.roles import RoleProcess, start

_READY_S = 90.0


@dataclass(slots=True)
class Gateway:
    base_url: str
    metrics_port: int
    process: RoleProcess | None = None  # `None` for the fleet's own gateway

    def metric(self, name: str, **labels: str) -> float:
        page = httpx.get(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=ANSWER_S).text
        return sum(
            sample.value
            for family in text_string_to_metric_families(page)
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )


@dataclass(slots=True)
class Front:
    """A client of each gateway; `ask` sends a request through a random one."""

    gateways: list[Gateway]
    clients: list[httpx.Client]
    rng: random.Random = field(default_factory=lambda: random.Random(7))

    def ask(self, body: dict[str, Any], headers: dict[str, str] | None = None) -> httpx.Response:
        return self.rng.choice(self.clients).post("/chat/completions", json=body, headers=headers)


@contextmanager
def gateways(fleet: Fleet, folder: Path, count: int, tenant: str = "acme", **changes: str) -> Iterator[Front]:
    """Yield `count` gateways: the fleet's own and new ones; `changes` are settings of the new ones by name."""
    own = Gateway(fleet.base_url, fleet.port_base + 5)
    environment = psutil.Process(fleet.pid("gateway")).environ()
    with ExitStack() as stack:
        found = [own] + [
            stack.enter_context(_gateway(environment | changes, folder / f"gateway-{number}"))
            for number in range(1, count)
        ]
        clients = [stack.enter_context(_client(fleet, gateway, tenant)) for gateway in found]
        for client in clients:
            wait_until("the gateway is ready", lambda client=client: _is_ready(client), _READY_S)  # type: ignore[misc]
        yield Front(found, clients)


@contextmanager
def _gateway(environment: dict[str, str], folder: Path) -> Iterator[Gateway]:
    folder.mkdir(parents=True)
    port, metrics_port = free_port(), free_port()
    own = {
        "SHOAL_GATEWAY_GATEWAY_ID": f"{folder.parent.name}-{folder.name}",  # unique among running gateways
        "SHOAL_GATEWAY_PORT": str(port),
        "SHOAL_GATEWAY_METRICS_PORT": str(metrics_port),
        "SHOAL_GATEWAY_SNAPSHOT_CACHE_FILE": str(folder / "snapshot.json"),
        "SHOAL_GATEWAY_TRACE_DIR": str(folder / "traces"),
        "SHOAL_GATEWAY_HANDOVER_SOCKET": str(folder / "door"),
    }
    with (folder / "log").open("w") as log:
        process = start("functions.gateway", env=environment | own, stderr=log)
    try:
        yield Gateway(f"https://localhost:{port}/v1", metrics_port, process)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(30.0)


@contextmanager
def _client(fleet: Fleet, gateway: Gateway, tenant: str) -> Iterator[httpx.Client]:
    headers = {"authorization": f"Bearer {fleet.key(tenant)}"}
    with httpx.Client(base_url=gateway.base_url, headers=headers, verify=fleet.tls, timeout=ANSWER_S) as client:
        yield client


def _is_ready(client: httpx.Client) -> bool:
    try:
        return client.get(str(client.base_url).removesuffix("/v1/") + "/readyz").status_code == 200
    except httpx.TransportError:
        return False
