"""The production overlay's bus: three servers and three sentinels as processes.

Names become loopback addresses, and ports and paths are the test's; everything else is as in the pods.
"""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import valkey

from functions.controller.local.context import valkey_server
from functions.fleet.bus import BusUnavailable
from functions.fleet.bus_users import login, server_users
from functions.fleet.conversation_store import ValkeyConversations
from functions.fleet.valkey_client import sentinels_of
from tests.manifests.checks.mounts import mounted, moved
from tests.manifests.rendering import Rendering
from tests.manifests.workloads import workloads

pytestmark = [pytest.mark.servers, pytest.mark.timeout(400)]  # starts six processes, twice, and waits for each
PASSWORD = "0123456789abcdef"
NODES = ("127.0.1.1", "127.0.1.2", "127.0.1.3")
_WAIT_S = 120.0
_FAILURES = 10  # in a row: one or two seconds here, half a minute in the cluster


@dataclass
class Node:
    """A pod of the bus; its volumes outlive its processes."""

    address: str
    scripts: dict[str, Path]  # by container
    environment: dict[str, str]
    folder: Path
    running: list["subprocess.Popen[bytes]"] = field(default_factory=list)
    failures: int = 0  # consecutive probe failures

    def start(self) -> None:
        with (self.folder / "log").open("ab") as log:
            for part, script in self.scripts.items():
                command = ["sh", str(script), part]
                self.running.append(subprocess.Popen(command, env=self.environment, stdout=log, stderr=log))

    def passes(self, probe: str) -> bool:
        script = next(iter(self.scripts.values()))
        command = ["sh", str(script), probe]
        return subprocess.run(command, check=False, env=self.environment, capture_output=True).returncode == 0

    def kill(self) -> None:
        for process in self.running:
            process.kill()
            process.wait()
        self.running.clear()


@dataclass
class Bus:
    nodes: tuple[Node, ...]
    port: int
    sentinel_port: int

    @property
    def url(self) -> str:
        sentinels = ",".join(f"{node.address}:{self.sentinel_port}" for node in self.nodes)
        return f"valkey+sentinel://{sentinels}/shoal/0"

    def info(self, node: Node) -> dict[str, object]:
        with valkey.Valkey(node.address, self.port, password=PASSWORD, socket_timeout=5) as client:
            return dict(client.info("replication"))

    def primary(self) -> Node | None:
        """Return the server that replicas follow and on which all answering sentinels agree."""
        for node in self.nodes:
            with suppress(valkey.ValkeyError, OSError):
                about = self.info(node)
                if about["role"] == "master" and about["min_slaves_good_slaves"] and self._agreed(node):
                    return node
        return None

    def _agreed(self, node: Node) -> bool:
        alive = [each for each in self.nodes if each.running]
        known = []
        for each in alive:
            with valkey.Valkey(each.address, self.sentinel_port, password=PASSWORD, socket_timeout=5) as client:
                about = client.sentinel_master("shoal")
                known.append((about["ip"], about["num-other-sentinels"], about["num-slaves"]))
        return all(each == (node.address, 2, 2) for each in known)

    def until(self, is_so: Callable[[], bool], what: str) -> None:
        deadline_s = time.monotonic() + _WAIT_S
        while time.monotonic() < deadline_s:
            with suppress(valkey.ValkeyError, OSError):
                if is_so():
                    return
            time.sleep(0.2)
        raise AssertionError("\n".join([what, *((node.folder / "log").read_text()[-3000:] for node in self.nodes)]))


@pytest.fixture
def bus(production: Rendering, tmp_path: Path) -> Iterator[Bus]:
    ports = _free_everywhere(), _free_everywhere()
    with ExitStack() as stack:
        nodes = tuple(_node(production, tmp_path / address, address, *ports) for address in NODES)
        for node in nodes:
            stack.callback(node.kill)
            node.start()
        yield Bus(nodes, *ports)


@pytest.mark.soak
async def test_bus_data_survives_loss_of_the_primary_and_of_all_pods(bus: Bus) -> None:
    bus.until(lambda: bus.primary() is not None, "three servers, and three sentinels that know each other")
    first = bus.primary()
    assert first is bus.nodes[0]
    store = ValkeyConversations(bus.url, password=login("gateway", PASSWORD))
    assert await store.replace("shelf", "kept", None, b"before", 600.0)
    bus.until(lambda: _is_in_sync(bus, first), "both replicas have it")

    first.kill()
    others = bus.nodes[1:]
    bus.until(lambda: bus.primary() in others, "one of the others is the primary")
    second = bus.primary()
    assert second is not None
    with suppress(BusUnavailable):  # the pooled connection to the old primary
        await store.read("kept")
    assert await store.read("kept") == b"before"

    first.start()
    bus.until(lambda: bus.info(first)["role"] == "slave" and _is_in_sync(bus, second), "the former one follows it")
    assert await store.replace("shelf", "later", None, b"after the failover", 600.0)
    time.sleep(1.5)  # the append-only file is synced each second

    for node in bus.nodes:
        node.kill()
    _primary_file(first).write_text(first.address + "\n")  # as if it had been down during the failover
    for node in bus.nodes:
        node.start()
    bus.until(lambda: _watched_over(bus) is second, "the last primary is it again, not the first node")
    with suppress(BusUnavailable):
        await store.read("kept")
    assert (await store.read("kept"), await store.read("later")) == (b"before", b"after the failover")
    await store.close()
    bus.until(lambda: all(node.passes(each) for node in bus.nodes for each in ("ready", "alive", "watches")), "probes")
    assert {_primary_file(node).read_text().strip() for node in bus.nodes} == {second.address}


def test_the_rendered_address_names_every_server(production: Rendering) -> None:
    for namespace in ("shoal", "shoal-models"):
        installation = production.one("ConfigMap", "shoal-installation", namespace)
        named = sentinels_of(installation["data"]["bus-url"])
        assert (named.name, len(named.sentinels)) == ("shoal", 3)
        for host, port in named.sentinels:
            service, of, _ = host.split(".")
            document = production.one("Service", service, of)
            assert port in {each["port"] for each in document["spec"]["ports"]}
            assert document["spec"]["publishNotReadyAddresses"], "its name must be there before it is ready"
    (budget,) = [each for each in production.of("PodDisruptionBudget") if each["metadata"]["name"] == "bus"]
    assert budget["spec"]["maxUnavailable"] == 1


def _watched_over(bus: Bus) -> Node | None:
    """Return the primary; restart nodes whose probes fail, as a kubelet does."""
    for node in bus.nodes:
        with suppress(valkey.ValkeyError, OSError):
            bus.info(node)  # raises until it has started
            node.failures = 0 if node.passes("alive") and node.passes("watches") else node.failures + 1
            if node.failures >= _FAILURES:
                node.failures = 0
                node.kill()
                node.start()
    return bus.primary()


def _primary_file(node: Node) -> Path:
    return node.folder / "mounts" / "data" / "primary"


def _is_in_sync(bus: Bus, primary: Node) -> bool:
    about: Any = bus.info(primary)
    offsets = [about[f"slave{number}"]["offset"] for number in range(about["connected_slaves"])]
    return offsets == [about["master_repl_offset"]] * 2


def _node(production: Rendering, folder: Path, address: str, port: int, sentinel_port: int) -> Node:
    (workload,) = [each for each in workloads(production) if each.name == "StatefulSet shoal/bus"]
    folders: dict[str, Path] = {}
    for container in workload.containers:
        folders |= mounted(workload, container, production, folder)
    (folders["/run/secrets/shoal/bus-password"] / "bus-password").write_text(PASSWORD)
    (folders["/run/secrets/shoal/bus-users"] / "users.acl").write_text("\n".join([*server_users(PASSWORD), ""]))

    def ours(text: str) -> str:
        text = moved(text, folders).replace("26379", "SENTINEL").replace("6379", str(port))
        return text.replace("SENTINEL", str(sentinel_port)).replace("bind * -::*", f"bind {address}")

    for file in (folders["/etc/valkey"] / "valkey.conf", folders["/etc/bus-node"] / "node.sh"):
        file.write_text(ours(file.read_text()))
    script = folders["/etc/bus-node"] / "node.sh"
    server_port, also_bound = f'echo "port {sentinel_port}"', f'echo "port {sentinel_port}"; echo "bind {address}"'
    assert server_port in script.read_text()
    script.write_text(script.read_text().replace(server_port, also_bound))
    script.chmod(0o755)
    assert [container["command"] for container in workload.containers] == [["/etc/bus-node/node.sh"]] * 2
    assert shutil.which("timeout")
    environment = {
        "PATH": f"{valkey_server().parent}:{os.environ['PATH']}",
        "OWN_NAME": address,
        "NODES": " ".join(NODES),
    }
    return Node(address, {each["args"][0]: script for each in workload.containers}, environment, folder)


def _free_everywhere() -> int:
    with ExitStack() as stack:
        first = stack.enter_context(socket.socket())
        first.bind((NODES[0], 0))
        port = int(first.getsockname()[1])
        for address in NODES[1:]:
            stack.enter_context(socket.socket()).bind((address, port))
        return port
