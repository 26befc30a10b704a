"""Rollout of a base with the git source: a push, a real registry and bus, and the controller as its own process.

The controller has the rights of the manifests, on a real API server. KServe is played by its double. This test plays
the pods (a heartbeat for each ready replica, with the weights of its service) and a gateway that reports requests of
both versions. There are no engines.
"""

import asyncio
import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from kubernetes.dynamic.exceptions import ConflictError, NotFoundError, TooManyRequestsError

from functions.controller.kubernetes.objects import value_at
from functions.decisions.rollout.evidence import GroupStats, encoded_group
from functions.fleet import rollout_heartbeat
from functions.fleet.bus import BusUnavailable
from functions.fleet.heartbeat import Heartbeat
from functions.fleet.rollout_heartbeat import RolloutHeartbeat, StageStats
from functions.fleet.valkey_bus import ValkeyBus
from tests.controller.kubernetes.api_server import ApiServer
from tests.controller.kubernetes.fixtures import make_space
from tests.controller.kubernetes.kserve_double import KServe
from tests.controller.kubernetes.run.rig import (
    POOL,
    TOKEN,
    ControllerProcess,
    Rig,
    installation,
    populate,
    service_spec,
    settled,
)
from tests.controller.kubernetes.run.test_git_reconciler import Repository, applied, services, start
from tests.controller.kubernetes.run.test_rights import BASE, GIT_SOURCE, grant
from tests.controller.kubernetes.run.waiting import until
from tests.controller.kubernetes.versions.documents import service
from tests.decisions.rollout.rollouts import digest
from tests.gateway.processes import valkey

pytestmark = [pytest.mark.servers, pytest.mark.timeout(600)]

REPLICAS = 2
QUICK = """\
apiVersion: shoal.dev/v1alpha1
kind: RolloutPolicy
metadata: {name: quick}
spec:
  stages: [{percent: 20, duration: 1s, autoHalt: ["error_rate > 20%"]}, {percent: 100}]
  minRequests: 20
"""
LEASE = {"LEASE_S": "4", "RENEW_DEADLINE_S": "3", "LEASE_RETRY_S": "0.5"}


def base(*versions: str) -> str:
    """YAML of a base whose channel points at the last version."""
    listed = ", ".join(
        f'{{name: {name}, artifact: "s3://shoal-models/bases/a/{name}", digest: "{digest(name)}"}}' for name in versions
    )
    return f"""\
apiVersion: shoal.dev/v1alpha1
kind: Model
metadata: {{name: a}}
spec: {{id: a, type: base, versions: [{listed}], channels: {{stable: {versions[-1]}}}, rollout: quick}}
"""


@dataclass
class Cluster:
    """The nodes and gateways of an installation, simulated."""

    rig: Rig
    bus_url: str
    failing: str = ""  # the version whose requests fail
    fewest_ready: int = 10**6
    # the pool's own service: weights, and its replicas at that time
    templates: list[tuple[str, int]] = field(default_factory=list)
    _stages: dict[tuple[str, int], dict[str, GroupStats]] = field(default_factory=dict)
    _sequence: int = 0

    @contextmanager
    def running(self) -> Iterator["Cluster"]:
        self.kserve = KServe(self.rig.space.client, self.rig.space.models)
        ended = threading.Event()
        threads = [
            threading.Thread(target=lambda: self._play_kserve(ended)),
            threading.Thread(target=lambda: asyncio.run(self._speak(ended))),
        ]
        for thread in threads:
            thread.start()
        try:
            yield self
        finally:
            ended.set()
            for thread in threads:
                thread.join()

    def _play_kserve(self, ended: threading.Event) -> None:
        while not ended.wait(0.2):
            # the next pass reads it again
            with contextlib.suppress(ConflictError, NotFoundError, TooManyRequestsError):
                self.kserve.step()

    async def _speak(self, ended: threading.Event) -> None:
        async with ValkeyBus(self.bus_url) as bus:
            while not ended.is_set():
                replicas = await asyncio.to_thread(self._replicas)
                snapshot = await asyncio.to_thread(self.rig.snapshot)
                self._sequence += 1
                for name, version in replicas:
                    with contextlib.suppress(BusUnavailable):
                        await bus.publish(self._heartbeat(name, version))
                for model in snapshot.models if snapshot is not None else ():
                    for split in model.splits:
                        self._request(split.rollout, split.stage, split.candidate)
                with contextlib.suppress(BusUnavailable):
                    await bus.publish_stats(rollout_heartbeat.encode(self._rollout_heartbeat()))
                await asyncio.sleep(0.2)

    def _replicas(self) -> list[tuple[str, str]]:
        """Return the ready replicas with their versions."""
        found = []
        try:
            there = services(self.rig)
        except TooManyRequestsError:  # the API server is setting up the kind's storage
            return []
        for name, each in there.items():
            deployment = self.kserve.deployment(name)
            ready = value_at(deployment or {}, "status", "readyReplicas") or 0
            version = str(value_at(each, "spec", "predictor", "model", "storageUri")).rpartition("@")[2]
            if name == "a" and (not self.templates or self.templates[-1][0] != version):
                self.templates.append((version, ready))
            found += [(f"{name}-{version}-{number}", version) for number in range(ready)]
        if len(found) >= REPLICAS or self.fewest_ready < 10**6:
            self.fewest_ready = min(self.fewest_ready, len(found))
        return found

    def _heartbeat(self, name: str, version: str) -> Heartbeat:
        return Heartbeat(
            replica_id=name, pool="a", host="127.0.0.1", port=1, phase="ready", sequence=self._sequence,
            incarnation=1, sent_unix_s=time.time(), weights_digest=digest(version),
        )  # fmt: skip

    def _request(self, rollout: str, stage: int, candidate: str) -> None:
        groups = self._stages.setdefault((rollout, stage), {"candidate": GroupStats(), "control": GroupStats()})
        for name, group in groups.items():
            for _ in range(20):
                group.requests += 1
                if name == "candidate" and candidate == self.failing:
                    group.errors += 1
                else:
                    group.total_ms.add(100.0)

    def _rollout_heartbeat(self) -> RolloutHeartbeat:
        told = tuple(
            StageStats(rollout, stage, encoded_group(groups["candidate"]), encoded_group(groups["control"]))  # type: ignore[arg-type]
            for (rollout, stage), groups in self._stages.items()
        )
        return RolloutHeartbeat("gateway-1", 1, self._sequence, time.time(), told)


@pytest.fixture
def cluster(shoal_server: ApiServer, tmp_path: Path) -> Iterator[Cluster]:
    with (
        valkey(tmp_path) as bus_url,
        installation(make_space(shoal_server), tmp_path, bus_url=bus_url) as rig,
        Cluster(rig, bus_url).running() as cluster,
    ):
        yield cluster


def push(repository: Repository, message: str, *versions: str) -> str:
    last = versions[-1]
    return repository.push(
        message, pool=service(replicas=REPLICAS, uri=f"shoal://a@{last}"), base=base(*versions), policy=QUICK
    )


def rollouts(rig: Rig) -> dict[str, dict[str, Any]]:
    """Return the last rollout to each version, as the public API shows it."""
    headers = {"authorization": f"Bearer {TOKEN}"}
    found = httpx.get(f"{rig.registry_url}/v1/rollouts", headers=headers, timeout=30).json()["data"]
    return {each["to_version"]: each for each in reversed(found)}


def shown(rig: Rig) -> dict[str, tuple[str, int]]:
    """Return weights and replica count of each service; the key of a second one is its version."""
    found = {}
    for name, each in services(rig).items():
        predictor = each["spec"]["predictor"]
        version = predictor["model"]["storageUri"].rpartition("@")[2]
        found[name if name == "a" else f"+{version}"] = (version, predictor.get("minReplicas"))
    return found


def start_controller(rig: Rig, repository: Repository, token: str) -> ControllerProcess:
    return start(rig, repository, token=token, **LEASE)


def test_push_rolls_a_base_out_in_stages_and_rolls_a_bad_one_back(cluster: Cluster, tmp_path: Path) -> None:
    """The controller is killed during the rollout; the next one continues it."""
    rig, repository = cluster.rig, Repository(tmp_path / "remote")
    token = grant(rig, BASE / "rbac.yaml", GIT_SOURCE / "rbac.yaml")
    first = push(repository, "a base", "v1")
    controller = start_controller(rig, repository, token)
    until(lambda: applied(rig) == f"main@{first}", controller.log)
    until(lambda: cluster.fewest_ready == REPLICAS, "both replicas are ready")
    push(repository, "its next version", "v1", "v2")
    until(lambda: "+v2" in shown(rig), controller.log)
    assert shown(rig)["a"] == ("v1", REPLICAS), "nothing of the old version goes for it"
    controller.end(signal.SIGKILL)
    second = start_controller(rig, repository, token)
    until(lambda: rollouts(rig).get("v2", {}).get("state") == "completed", second.log)
    until(lambda: shown(rig) == {"a": ("v2", REPLICAS)}, "all are the pool's own again")
    assert cluster.templates[1:] == [("v2", 0)], "the own service had no replica to lose"
    assert cluster.fewest_ready == REPLICAS
    until(lambda: rig.record()["data"]["versions"] == "{}", second.log)
    cluster.failing = "v3"
    push(repository, "a bad one", "v1", "v2", "v3")
    until(lambda: rollouts(rig).get("v3", {}).get("state") == "rolled_back", second.log)
    assert "error_rate > 20%" in rollouts(rig)["v3"]["reason"]
    until(lambda: shown(rig) == {"a": ("v2", REPLICAS)}, "what was taken back is gone")
    assert len(cluster.templates) == 2, "and its weights never came to the pool's own service"
    assert "forbidden" not in controller.log + second.log
    assert "Traceback" not in controller.log + second.log


def test_second_service_is_not_listed_as_a_pool(rig: Rig) -> None:
    """With objects as the source, a service left over from the git source claims no pool and gets no budget."""
    populate(rig)
    labels = {"shoal.dev/pool": POOL, "shoal.dev/version-of": POOL}
    rig.create("InferenceService", "base-a-v2-1a2b3c", service_spec(), labels=labels)
    controller = rig.controller()
    settled(rig, controller)
    snapshot = rig.snapshot()
    assert snapshot is not None and [pool.name for pool in snapshot.pools] == [POOL]
    assert rig.budgets() == [POOL]
    assert controller.metric("refused_objects") == 0
