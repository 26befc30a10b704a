"""Health on a cluster, with the rights of the manifests: taints, replaced pods and reported nodes."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from functions.controller.autoscaling.clients import PoolsClient
from functions.controller.health.watch import FleetHealth
from functions.controller.kubernetes.api import KubeApi
from functions.controller.kubernetes.objects import Body
from functions.controller.kubernetes.run.event_notes import EventNote
from functions.controller.kubernetes.run.health_reconciler import HealthReconciler
from functions.controller.kubernetes.run.node_watch import CLEARED_ANNOTATION, TAINT, NodeInformer
from functions.controller.kubernetes.run.watch_client import WatchClient
from functions.controller.snapshot.registry_client import RegistryClient
from functions.decisions.health.pace import Pace
from functions.decisions.health.slow_replica import SlowPolicy
from functions.fleet.pool_board import PoolReport, replica_report
from functions.fleet.verdicts import Verdicts
from tests.controller.kubernetes.fixtures import Space, create
from tests.controller.kubernetes.fleet import Fleet, Leader, pool
from tests.controller.kubernetes.run.rig import Rig
from tests.controller.kubernetes.run.test_rights import BASE, grant
from tests.controller.kubernetes.run.waiting import until
from tests.fleet.builders import beat
from tests.registry.rig import TOKEN, serving
from tests.registry.rig import Rig as RegistryRig

pytestmark = [pytest.mark.servers, pytest.mark.timeout(400)]

FAULT = "accelerator 0: XID 79, fallen off the bus: the machine has to be restarted"
_MERGE = "application/merge-patch+json"


@dataclass
class Cluster:
    """Three nodes, each with a pod of pool `a`, and a controller that has only the rights of the manifests."""

    space: Space
    registry_rig: RegistryRig
    clock: list[float] = field(default_factory=lambda: [0.0])
    paces: dict[str, float] = field(default_factory=dict)  # ms between two tokens, by pod
    faults: dict[str, str] = field(default_factory=dict)
    claims: dict[str, str] = field(default_factory=dict)  # the node that a pod claims to run on, by pod
    notes: list[EventNote] = field(default_factory=list)
    looks: int = 0

    def __post_init__(self) -> None:
        token = grant(cast(Rig, SimpleNamespace(space=self.space)), BASE / "rbac.yaml")
        client = self.space.server.client(token)
        self.api = KubeApi(client, Leader())
        self.changed = asyncio.Event()
        loop = asyncio.get_running_loop()
        watch = WatchClient(client.client)
        self.informer = NodeInformer(watch, lambda: loop.call_soon_threadsafe(self.changed.set))
        self.thread = threading.Thread(target=self.informer.run, daemon=True)
        self.reconciler = HealthReconciler(
            self.space.models,
            PoolsClient(RegistryClient(self.registry_rig.client, self.registry_rig.url, TOKEN)),
            FleetHealth(SlowPolicy(60.0, 600.0), clock=lambda: self.clock[0], wall_clock=lambda: 1e6),
            report=self.report,
            nodes=self.informer.nodes,
            changed=self.changed,
            is_suspended=lambda: False,
            on_notes=self._noted,
        )

    def _noted(self, notes: Iterable[EventNote]) -> None:
        self.notes += notes

    def node_of(self, pod: str) -> str:
        return f"node-{pod}-{self.space.system}"

    def create_pod(self, pod: str, on: str = "") -> None:
        client = self.space.client
        if not on:
            create(client, "/api/v1/nodes", {"metadata": {"name": self.node_of(pod)}, "spec": {"taints": [_OTHER]}})
        body = {
            "metadata": {"name": pod, "labels": {"shoal.dev/pool": "a"}},
            "spec": {"nodeName": self.node_of(on or pod), "containers": [{"name": "engine", "image": "engine"}]},
        }
        create(client, f"/api/v1/namespaces/{self.space.models}/pods", body)

    def node(self, pod: str) -> Body:
        return self._get(f"/api/v1/nodes/{self.node_of(pod)}")

    def taints(self, pod: str) -> list[str]:
        """Return the node's taints except those that the API server puts on a new node."""
        keys = [each["key"] for each in self.node(pod)["spec"].get("taints", ())]
        return [key for key in keys if not key.startswith("node.kubernetes.io/")]

    def is_ending(self, pod: str) -> bool:
        return "deletionTimestamp" in self._get(f"/api/v1/namespaces/{self.space.models}/pods/{pod}")["metadata"]

    def patch(self, pod: str, body: Body, subresource: str = "") -> None:
        path = f"/api/v1/nodes/{self.node_of(pod)}{subresource}"
        self.space.client.request("patch", path, body=body, content_type=_MERGE, serializer=lambda _c, data: data)

    def report(self) -> PoolReport:
        replicas = []
        for pod in ("a-0", "a-1", "a-2", "a-3"):
            if pod == "a-3" and pod not in self.faults:
                continue
            gap_ms = self.paces.get(pod, 20.0)
            pace = Pace(self.looks, 20, 500, 3.0, 0.0, queue_ms=5.0, prefill_ms=0.2, gap_ms=gap_ms)
            phase = "draining" if pod in self.faults else "ready"
            fault = self.faults.get(pod, "")
            told = beat(
                replica_id=pod,
                pool="a",
                phase=phase,
                node=self.node_of(self.claims.get(pod, pod)),
                pace=pace,
                accelerator_fault=fault,
            )
            replicas.append(replica_report(told, 0.1))
        return PoolReport(True, {}, tuple(replicas))

    async def step(self, after_s: float = 10.0) -> Verdicts:
        self.clock[0] += after_s
        self.looks += 1
        await self.reconciler.step(self.api)
        return self.registry_rig.fleet.verdicts

    def _get(self, path: str) -> Body:
        answer: Body = self.space.client.request("get", path, serializer=lambda _c, data: data)
        return answer


_OTHER = {"key": "nvidia.com/gpu", "effect": "NoSchedule"}


@pytest.fixture
async def cluster(space: Space, tmp_path: Path) -> AsyncIterator[Cluster]:
    fleet = Fleet(space)
    await asyncio.to_thread(lambda: fleet.converge(fleet.desired(pool("a", replicas=2))))
    async with serving(tmp_path) as registry_rig:
        await asyncio.to_thread(_account, space)
        it = Cluster(space, registry_rig)
        for pod in ("a-0", "a-1", "a-2"):
            await asyncio.to_thread(it.create_pod, pod)
        it.thread.start()
        await asyncio.to_thread(until, lambda: len(it.informer.nodes()) >= 3, lambda: it.informer.problem)
        yield it
        it.informer.stop()
        await asyncio.to_thread(it.thread.join, 10)


def _account(space: Space) -> None:
    """Pods need this account; no controller manager makes it here."""
    create(space.client, f"/api/v1/namespaces/{space.models}/serviceaccounts", {"metadata": {"name": "default"}})


async def test_node_with_a_failed_accelerator_is_tainted_until_cleared(cluster: Cluster) -> None:
    await cluster.step()
    assert cluster.taints("a-0") == ["nvidia.com/gpu"]
    cluster.faults["a-0"] = FAULT
    told = await cluster.step()
    assert [(each.replica_id, each.what, each.state) for each in told.replicas] == [("a-0", "accelerator", "out")]
    assert cluster.taints("a-0") == ["nvidia.com/gpu", TAINT]
    assert cluster.node("a-0")["metadata"]["annotations"][TAINT] == FAULT
    assert cluster.is_ending("a-0") and not cluster.is_ending("a-1")
    assert [(note.regarding.name, note.reason) for note in cluster.notes] == [("a", "AcceleratorError")]
    cluster.faults["a-1"] = FAULT
    await asyncio.to_thread(until, lambda: cluster.informer.nodes()[cluster.node_of("a-0")].is_tainted, str)
    await cluster.step()
    assert cluster.taints("a-1") == ["nvidia.com/gpu"], "not one node after the other for what may be the driver's"
    cluster.faults.clear()
    cluster.patch("a-0", {"metadata": {"annotations": {CLEARED_ANNOTATION: "replaced"}}})
    await asyncio.to_thread(until, lambda: cluster.informer.nodes()[cluster.node_of("a-0")].is_cleared, str)
    await cluster.step()
    assert cluster.taints("a-0") == ["nvidia.com/gpu"]
    assert not {TAINT, CLEARED_ANNOTATION} & cluster.node("a-0")["metadata"].get("annotations", {}).keys()


async def test_fault_report_for_a_node_without_the_pod_is_ignored(cluster: Cluster) -> None:
    """A holder of the agents' secret can sign for any replica."""
    cluster.faults["a-0"] = FAULT
    await cluster.step()
    await asyncio.to_thread(until, lambda: cluster.informer.nodes()[cluster.node_of("a-0")].is_tainted, str)
    cluster.faults |= {"a-1": FAULT, "a-2": FAULT}
    cluster.claims |= {"a-1": "a-0", "a-2": "a-0"}  # the node that is already tainted
    await cluster.step()
    assert not cluster.is_ending("a-1") and not cluster.is_ending("a-2")


async def test_faulty_pods_of_a_pool_are_replaced_one_at_a_time(cluster: Cluster) -> None:
    cluster.create_pod("a-3", on="a-0")
    cluster.faults["a-0"] = FAULT
    await cluster.step()
    await asyncio.to_thread(until, lambda: cluster.informer.nodes()[cluster.node_of("a-0")].is_tainted, str)
    cluster.faults["a-3"] = FAULT
    cluster.claims["a-3"] = "a-0"
    await cluster.step()
    assert cluster.is_ending("a-0") and not cluster.is_ending("a-3"), "another one goes still"


async def test_a_slow_pod_is_deleted_and_only_that_one(cluster: Cluster) -> None:
    cluster.paces["a-1"] = 200.0
    for _ in range(8):
        told = await cluster.step()
    assert cluster.is_ending("a-1")
    assert not cluster.is_ending("a-0") and not cluster.is_ending("a-2")
    assert told.slow_restarts == {"a": 1}
    assert [note.reason for note in cluster.notes] == ["SlowReplica"]


async def test_unready_node_is_reported_at_once(cluster: Cluster) -> None:
    await cluster.step()
    cluster.changed.clear()
    condition = {"type": "Ready", "status": "False", "reason": "KubeletNotReady", "message": "no runtime"}
    cluster.patch("a-2", {"status": {"conditions": [condition]}}, "/status")
    async with asyncio.timeout(10):
        await cluster.changed.wait()
    assert (await cluster.step(0.1)).nodes == {cluster.node_of("a-2"): "down"}
    cluster.patch("a-2", {"status": {"conditions": [{**condition, "status": "True"}]}}, "/status")
    await asyncio.to_thread(until, lambda: not cluster.informer.nodes()[cluster.node_of("a-2")].trouble, str)
    assert (await cluster.step(0.1)).nodes == {}
