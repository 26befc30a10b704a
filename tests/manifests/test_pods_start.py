"""The pods' processes start here with the same commands, variables and files, in a folder instead of a container.

Only paths, ports and addresses differ: temporary folders, free ports, loopback. Every probe of the manifests is then
sent as the kubelet sends it, and its route must exist.
"""

import contextlib
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import valkey

from functions.fleet.bus_users import password_of
from functions.fleet.role_credentials import Role
from functions.fleet.role_credentials import document as credentials_document
from tests.controller.kubernetes.api_server import ApiServer
from tests.controller.kubernetes.crds import INFERENCE_SERVICE, create_crds
from tests.controller.kubernetes.fixtures import TIMEOUT_S
from tests.manifests.checks.mounts import mounted, moved
from tests.manifests.checks.settings import environment_of, module_of
from tests.manifests.rendering import MANIFESTS, Rendering
from tests.manifests.shipped_bus import BUS_PASSWORD, ShippedBus
from tests.manifests.test_real_server import apply
from tests.manifests.workloads import workloads
from tests.ports import free_port

pytestmark = [pytest.mark.servers, pytest.mark.timeout(TIMEOUT_S)]

_PATIENCE_S = 90.0  # time for Python's imports on a busy machine
_TOKEN = "0123456789abcdef" * 4
_ROLES: dict[str, Role] = {
    "functions.gateway": "gateway",
    "functions.controller.kubernetes": "controller",
    "functions.replica": "agent",
}
_SECRETS = {"s3.json": '{"access_key_id": "reader", "secret_access_key": "secret"}'}
_NOWHERE = "127.0.0.1:1"  # registry, bus and store are unreachable: a process starts without them


@dataclass(frozen=True)
class Pod:
    """One container of a rendering, run as a local process."""

    container: dict[str, Any]
    module: str
    environment: dict[str, str]
    ports: dict[int, int]  # the container's, and ours

    @contextlib.contextmanager
    def running(self, log: Path) -> Iterator["subprocess.Popen[bytes]"]:
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", self.module], env=self.environment, stdout=output, stderr=subprocess.STDOUT
            )
            try:
                yield process
            finally:
                process.kill()
                process.wait()

    def asked(self, probe: str) -> int:
        """Return the status code that this probe gets."""
        handler = self.container[probe]["httpGet"]
        port = next(ours for theirs, ours in self.ports.items() if handler["port"] in (theirs, self._names()[theirs]))
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{handler['path']}", timeout=_PATIENCE_S) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as answer:
            return answer.code

    def _names(self) -> dict[int, str]:
        return {port["containerPort"]: port.get("name", "") for port in self.container["ports"]}


@pytest.mark.parametrize(
    ("module", "ready"), [("functions.gateway", 503), ("functions.registry", 200), ("functions.replica", 503)]
)
def test_its_probes_are_answered(module: str, ready: int, staging: Rendering, tmp_path: Path) -> None:
    """All processes are alive without bus, registry and engine; only the registry is ready."""
    pod = pod_of(module, staging, tmp_path)
    log = tmp_path / "log"
    with pod.running(log) as process:
        assert until_answered(pod, process) == 200, log.read_text()
        assert pod.asked("readinessProbe") == ready


def test_the_controller_gets_ready_as_its_account(
    api_server: ApiServer, crds_dir: Path, staging: Rendering, tmp_path: Path
) -> None:
    """The CRDs, the roles and a token of its ServiceAccount suffice, as the Deployment provides them."""
    client = api_server.client()
    create_crds(client, crds_dir / INFERENCE_SERVICE, *sorted((MANIFESTS / "base" / "crds").glob("*.yaml")))
    for document in staging.of(
        "Namespace", "ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"
    ):
        apply(client, document, dry_run=False)
    pod = pod_of("functions.controller.kubernetes", staging, tmp_path)
    port = free_port()
    kubeconfig = api_server.kubeconfig(api_server.token_of("shoal", "controller"), tmp_path / "kubeconfig")
    own = {"SHOAL_CONTROLLER_KUBECONFIG": str(kubeconfig), "SHOAL_CONTROLLER_PORT": str(port)}
    pod = replace(pod, environment={**pod.environment, **own, "SHOAL_CONTROLLER_HOST": "127.0.0.1"}, ports={8447: port})
    log = tmp_path / "log"
    with pod.running(log) as process:
        assert until_answered(pod, process) == 200, log.read_text()
        deadline_s = time.monotonic() + _PATIENCE_S
        while pod.asked("readinessProbe") != 200:
            assert time.monotonic() < deadline_s, log.read_text()
            time.sleep(0.2)


def test_the_bus_starts_with_its_configuration(staging: Rendering, tmp_path: Path) -> None:
    with ShippedBus.of(staging, tmp_path).running() as bus:
        with valkey.Valkey(port=bus.port, password=BUS_PASSWORD, socket_timeout=30) as client:
            wait_for(client.ping, bus.process)
            assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
            assert client.config_get("save") == {"save": ""}
        gateway = {"username": "gateway", "password": password_of("gateway", BUS_PASSWORD)}
        with (
            valkey.Valkey(port=bus.port, socket_timeout=30, **gateway) as role,
            pytest.raises(valkey.exceptions.NoPermissionError),
        ):
            assert role.publish("shoal:pins", "x") == 0
            role.publish("shoal:snapshots", "x")
        with valkey.Valkey(port=bus.port, socket_timeout=30) as stranger, pytest.raises(valkey.AuthenticationError):
            stranger.ping()
        written = bus.folders["/run/valkey"] / "password.conf"
        assert (written.stat().st_mode & 0o777, BUS_PASSWORD in written.read_text()) == (0o600, True)


def pod_of(module: str, rendering: Rendering, folder: Path) -> Pod:
    workload, container = next(
        (workload, container)
        for workload in workloads(rendering)
        for container in workload.containers
        if module_of(container) == module
    )
    folders = mounted(workload, container, rendering, folder)
    for path in folders.values():
        for name in ("internal-token", "bus-password", "pepper", "s3.json", "password"):
            if path.name in (name, "s3", "database"):
                (path / name).write_text(_SECRETS.get(name, _TOKEN))
        if path.name == "trace-store":
            (path / "trace-store-password").write_text(_TOKEN)
        if path.name == "credentials":
            (path / "credentials.json").write_bytes(credentials_document(_ROLES[module], [_TOKEN]))
    listening = {each["containerPort"] for each in container["ports"]}
    environment = {}
    ports = {}
    for name, value in environment_of(container, workload, rendering).items():
        environment[name] = moved(value, folders)
        if name.endswith("_PORT") and not name.endswith("ENGINE_PORT"):
            ours = free_port()
            environment[name] = str(ours)
            if int(value) in listening:
                ports[int(value)] = ours
        elif name.endswith("_URL") and value:
            environment[name] = f"{value.partition('://')[0]}://{_NOWHERE}"
        elif name.endswith("_HOST"):
            environment[name] = "127.0.0.1"
    return Pod(container, module, {**environment, "PATH": os.environ["PATH"]}, ports)


def until_answered(pod: Pod, process: "subprocess.Popen[bytes]") -> int:
    return int(wait_for(lambda: pod.asked("livenessProbe"), process))


def wait_for(ask: Any, process: "subprocess.Popen[bytes]") -> Any:
    deadline_s = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline_s and process.poll() is None:
        with contextlib.suppress(OSError, valkey.ConnectionError):
            return ask()
        time.sleep(0.05)
    raise AssertionError(f"no answer; its exit code is {process.poll()}")
