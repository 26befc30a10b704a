"""Bus, registry, controller, gateways and agents of an overlay as processes, each with the environment of its pod.

This module provides what is outside the pods: addresses, mounted folders and secrets, an API server with the overlay's
objects and the test's tenants, simulated engines. The registry uses a file instead of Postgres.
"""

import json
import random
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import httpx
from kubernetes.dynamic import DynamicClient

from functions.api import keys
from functions.fleet.bus_users import BusUser, login
from tests.cluster.declarations import quota_policy, tenant
from tests.controller.kubernetes.api_server import ApiServer
from tests.controller.kubernetes.crds import INFERENCE_SERVICE, create_crds
from tests.e2e.more_gateways import Gateway
from tests.fleets import ANSWER_S
from tests.manifests.rendering import MANIFESTS, Document, Rendering
from tests.manifests.shipped_bus import BUS_PASSWORD, ShippedBus
from tests.manifests.test_pods_start import Pod, pod_of
from tests.manifests.test_real_server import apply
from tests.origin_pools import PoolPerOrigin
from tests.ports import free_port
from tests.replica.processes import Engine, role, wait_for

POOL = "smollm2-135m"
_TOKEN = "0123456789abcdef" * 4  # also the pepper: `pod_of` sets it in all pods
_DIGEST = "sha256:" + "ab" * 32  # pinned, since there is no store to resolve it
_RIGHTS = ("Namespace", "ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")
_POLICIES = ("AdmissionPolicy", "RoutingPolicy", "RolloutPolicy", "InferenceService")


@dataclass
class ByLot(httpx.AsyncBaseTransport):
    """Transport that sends each request to a random gateway, like a load balancer that ignores tenants."""

    ports: list[int]
    rng: random.Random = field(default_factory=lambda: random.Random(7))
    inner: PoolPerOrigin = field(default_factory=PoolPerOrigin)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        request.url = request.url.copy_with(port=self.rng.choice(self.ports))
        return await self.inner.handle_async_request(request)

    async def aclose(self) -> None:
        await self.inner.aclose()


@dataclass
class WholeFleet:
    rendering: Rendering
    folder: Path
    bus: ShippedBus
    registry_url: str
    keys: dict[str, str]  # by tenant
    gateways: list[Gateway] = field(default_factory=list)

    def client(self, gateway: Gateway, name: str) -> httpx.Client:
        return httpx.Client(base_url=gateway.base_url, headers=self.headers(name), timeout=ANSWER_S, trust_env=False)

    def by_lot(self, name: str) -> httpx.AsyncClient:
        ports = [httpx.URL(gateway.base_url).port or 0 for gateway in self.gateways]
        return httpx.AsyncClient(
            base_url="http://127.0.0.1/v1", headers=self.headers(name), timeout=ANSWER_S, transport=ByLot(ports)
        )

    def headers(self, name: str) -> dict[str, str]:
        return {"authorization": f"Bearer {self.keys[name]}"}

    @contextmanager
    def gateway(self, name: str) -> Iterator[Gateway]:
        """Start another gateway and yield it once it answers."""
        pod = self.pod("functions.gateway", "gateway", name, SHOAL_GATEWAY_GATEWAY_ID=name)
        metrics_port = int(pod.environment["SHOAL_GATEWAY_METRICS_PORT"])
        with role(pod.module, log=self.folder / name / "log", env=pod.environment) as process:
            gateway = Gateway(f"http://127.0.0.1:{pod.ports[8080]}/v1", metrics_port, process)
            wait_for(lambda: process.poll() is not None or self.answers(gateway), f"{name} answers")
            assert process.poll() is None, (self.folder / name / "log").read_text()
            yield gateway

    def answers(self, gateway: Gateway) -> bool:
        body = {"model": POOL, "max_tokens": 1, "messages": [{"role": "user", "content": "hi"}]}
        with self.client(gateway, "unlimited") as client:
            try:
                return client.post("/chat/completions", json=body).status_code == 200
            except httpx.TransportError:
                return False

    def pod(self, module: str, user: BusUser, name: str, **own: str) -> Pod:
        """Return the module's container with this fleet's addresses and the bus user `user`."""
        folder = self.folder / name
        folder.mkdir(parents=True)
        pod = pod_of(module, self.rendering, folder)
        (folder / "mounts" / "bus-password" / "bus-password").write_text(login(user, BUS_PASSWORD))
        addresses = {
            variable: {"BUS": self.bus.url, "REGISTRY": self.registry_url}.get(variable.split("_")[-2], value)
            for variable, value in pod.environment.items()
            if variable.endswith("_URL")
        }
        return replace(pod, environment={**pod.environment, **addresses, **own})


@contextmanager
def running(
    rendering: Rendering,
    server: ApiServer,
    crds: Path,
    folder: Path,
    *,
    agents: int,
    gateways: int,
    limits: Mapping[str, int],
) -> Iterator[WholeFleet]:
    """Run the fleet. `limits` has each tenant's requests a minute; one tenant is called `unlimited`."""
    with ExitStack() as stack:
        bus = stack.enter_context(ShippedBus.of(rendering, folder / "bus").running())
        fleet = WholeFleet(rendering, folder, bus, f"http://127.0.0.1:{free_port()}", {})
        declare(server.client(), crds, fleet, limits)
        stack.enter_context(_registry(fleet))
        stack.enter_context(_controller(fleet, server))
        for number in range(agents):
            stack.enter_context(_replica(fleet, f"replica-{number}"))
        for number in range(gateways):
            fleet.gateways.append(stack.enter_context(fleet.gateway(f"gateway-{number}")))
        yield fleet


def declare(client: DynamicClient, crds: Path, fleet: WholeFleet, limits: Mapping[str, int]) -> None:
    """Create the overlay's rights, policies, pool and base model, and tenants with one key and one limit each."""
    create_crds(client, crds / INFERENCE_SERVICE, *sorted((MANIFESTS / "base" / "crds").glob("*.yaml")))
    objects: list[Document] = [*fleet.rendering.of(*_RIGHTS), *fleet.rendering.of(*_POLICIES), _base(fleet.rendering)]
    for number, (name, per_minute) in enumerate(limits.items(), 1):
        key_id = f"key-{number}"
        fleet.keys[name] = key = keys.mint("test", key_id, bytes([number]) * 32)
        parsed = keys.parse(key)
        assert parsed is not None
        hashed = keys.keyed_hash(_TOKEN.encode(), parsed.secret)
        entry = {"id": key_id, "hmacSha256": hashed, "scopes": ["inference"]}
        objects += [_ours(quota_policy(name, requestsPerMinute=per_minute)), _ours(tenant(name, name, [POOL], [entry]))]
    for each in objects:
        apply(client, each, dry_run=False)


def _base(rendering: Rendering) -> Document:
    (base,) = [each for each in rendering.copied().of("Model") if each["spec"].get("id") == POOL]
    for version in base["spec"]["versions"]:
        version["digest"] = _DIGEST
    return base


def _ours(body: Document) -> Document:
    return {**body, "metadata": {**body["metadata"], "namespace": "shoal"}}


@contextmanager
def _registry(fleet: WholeFleet) -> Iterator[None]:
    pod = fleet.pod("functions.registry", "registry", "registry")
    port = str(httpx.URL(fleet.registry_url).port)
    kept = {name: value for name, value in pod.environment.items() if "DATABASE" not in name}
    environment = {**kept, "SHOAL_REGISTRY_PORT": port}
    with role(pod.module, log=fleet.folder / "registry" / "log", env=environment):
        yield


@contextmanager
def _controller(fleet: WholeFleet, server: ApiServer) -> Iterator[None]:
    folder = fleet.folder / "controller"
    folder.mkdir()
    kubeconfig = server.kubeconfig(server.token_of("shoal", "controller"), folder / "kubeconfig")
    pod = pod_of("functions.controller.kubernetes", fleet.rendering, folder)
    own = {
        "SHOAL_CONTROLLER_KUBECONFIG": str(kubeconfig),
        "SHOAL_CONTROLLER_PORT": str(free_port()),
        "SHOAL_CONTROLLER_HOST": "127.0.0.1",
        "SHOAL_CONTROLLER_REGISTRY_URL": fleet.registry_url,
        "SHOAL_CONTROLLER_REGISTRY_ROWS_FILE": str(folder / "registry-rows.json"),
    }
    with role(pod.module, log=folder / "log", env={**pod.environment, **own}):
        yield


@contextmanager
def _replica(fleet: WholeFleet, name: str) -> Iterator[None]:
    """Run an agent and its engine, which publishes cache events as in the runtime, on its own sockets."""
    folder = fleet.folder / name
    sockets = {"endpoint": f"ipc://{folder}/kv", "replay_endpoint": f"ipc://{folder}/replay"}
    engine_events = json.dumps({"enable_kv_cache_events": True, **sockets})
    flags = ("--enable-prompt-tokens-details", "--scheduling-policy", "priority", "--kv-events-config", engine_events)
    engine = Engine(folder, arguments=flags)
    own = {
        "REPLICA_ID": name,
        "NODE_NAME": f"node-of-{name}",
        "ENGINE_PORT": str(engine.port),
        "KV_EVENTS_ENDPOINT": sockets["endpoint"],
        "KV_EVENTS_REPLAY_ENDPOINT": sockets["replay_endpoint"],
    }
    variables = {f"SHOAL_REPLICA_{each}": value for each, value in own.items()}
    pod = fleet.pod("functions.replica", "agent", name, **variables)
    with engine.run(), role(pod.module, log=folder / "log", env=pod.environment):
        yield
