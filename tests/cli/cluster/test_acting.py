"""Commands that change a cluster: pods rolled, one replica drained, through a real API server.

Controllers and kubelet are the test's: it writes what they would say.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from kubernetes.dynamic.exceptions import NotFoundError

from functions.api.kinds.inference_service import VERSION_OF_LABEL
from functions.cli.cluster import drain, restart
from functions.cli.refused import CommandRefused
from tests.cli.cluster.test_on_a_server import choice, forwarding_kubelet, here, make, running
from tests.controller.kubernetes.crds import create_crds
from tests.controller.kubernetes.fixtures import TIMEOUT_S, Space, foreign_crds
from tests.manifests.test_prefixes_from_the_store import bus_url
from tests.replica.processes import AgentProcess, Engine, wait_for

__all__ = ["bus_url", "forwarding_kubelet", "here"]
pytestmark = [pytest.mark.servers, pytest.mark.timeout(TIMEOUT_S)]

_MERGE = "application/merge-patch+json"
APPS = "/apis/apps/v1/namespaces"
KSERVE = "/apis/serving.kserve.io/v1beta1/namespaces"
POOL = "llama"
STAMP = "2026-11-28T00:00:00+00:00"


def get(space: Space, path: str) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = space.client.request("get", path, serializer=lambda _c, data: data)
    except NotFoundError:
        return None
    return found


def says(space: Space, path: str, **status: Any) -> None:
    """Update the status as the kind's controller would."""
    space.client.request("patch", f"{path}/status", body={"status": status}, content_type=_MERGE)


def template(name: str) -> dict[str, Any]:
    pod = {"containers": [{"name": "one", "image": "x"}]}
    return {"metadata": {"labels": {"app": name}}, "spec": pod}


def workload(space: Space, namespace: str, kind: str, name: str, **more: Any) -> str:
    spec = {"selector": {"matchLabels": {"app": name}}, "template": template(name), "replicas": 2, **more}
    make(space, f"{APPS}/{namespace}/{kind}", name, spec=spec)
    return f"{APPS}/{namespace}/{kind}/{name}"


def service(space: Space, name: str, pool: str | None, **labels: str) -> None:
    path = f"/apis/serving.kserve.io/v1beta1/namespaces/{space.models}/inferenceservices"
    spec = {"predictor": {"model": {"modelFormat": {"name": "vLLM"}}}}
    head = {"apiVersion": "serving.kserve.io/v1beta1", "kind": "InferenceService"}
    make(space, path, name, labels={"shoal.dev/pool": pool, **labels} if pool else {}, spec=spec, **head)


@contextmanager
def following(run: Callable[[], None]) -> Iterator[list[BaseException]]:
    """Execute `run` in a thread until it ends; collect what it raised."""
    raised: list[BaseException] = []

    def guarded() -> None:
        try:
            run()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=guarded)
    thread.start()
    yield raised
    thread.join(60.0)
    assert not thread.is_alive()


def ordered(space: Space, path: str) -> dict[str, str]:
    found = get(space, path)
    assert found is not None
    return dict(found["spec"]["predictor"].get("annotations") or {})


def as_kserve_would(annotations: dict[str, str]) -> dict[str, Any]:
    return {"spec": {"template": {"metadata": {"annotations": annotations}}}}


def restarted(space: Space, path: str) -> bool:
    found = get(space, path)
    assert found is not None
    return restart.RESTARTED_AT in (found["spec"]["template"].get("metadata", {}).get("annotations") or {})


@pytest.mark.parametrize(("name", "kind"), [("controller", "deployments"), ("bus", "statefulsets")])
def test_a_process_is_rolled_to_its_end(here: Space, name: str, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The restart follows the conventions of `kubectl rollout restart` and `kubectl rollout status`."""
    more = {"serviceName": name} if kind == "statefulsets" else {}
    path = workload(here, here.system, kind, name, **more)
    with following(lambda: restart.restart(choice(here), name)) as raised:
        wait_for(lambda: restarted(here, path), "the pods' template is another one")
        says(here, path, observedGeneration=2, replicas=3, updatedReplicas=1, readyReplicas=2, availableReplicas=2)
        says(here, path, observedGeneration=2, replicas=2, updatedReplicas=2, readyReplicas=2, availableReplicas=2)
    assert raised == []
    assert "all of its pods are new" in capsys.readouterr().out


def test_a_pool_is_rolled_by_kserve(kserve_server: object, here: Space) -> None:
    """The restart annotation is on the InferenceService, since KServe would remove it from the Deployment.

    KServe's part is the test's: it copies the predictor's annotations to the pods' template.
    """
    service(here, "llama-8b", POOL)
    service(here, "somebodys", None)
    service(
        here, "llama-8b-v2-1a2b3c", POOL, **{VERSION_OF_LABEL: POOL}
    )  # listed last; it must not be mistaken for the pool
    path = workload(here, here.models, "deployments", "llama-8b-predictor")
    service_path = f"{KSERVE}/{here.models}/inferenceservices/llama-8b"
    whole = {"replicas": 2, "updatedReplicas": 2, "readyReplicas": 2, "availableReplicas": 2}
    says(here, path, observedGeneration=1, **whole)
    with following(lambda: restart.restart(choice(here), POOL)) as raised:
        wait_for(lambda: bool(ordered(here, service_path)), "KServe is asked for other pods")
        assert not restarted(here, path)
        time.sleep(2.0)  # real: it polls once a second, and nothing has started
        assert raised == []
        here.client.request("patch", path, body=as_kserve_would(ordered(here, service_path)), content_type=_MERGE)
        says(here, path, observedGeneration=2, **whole)
    assert raised == []
    with pytest.raises(CommandRefused, match=r"there are: gateway, registry, controller, bus, llama$"):
        restart.restart(choice(here), "somebodys")


def test_a_gateway_gets_a_new_revision(here: Space) -> None:
    """Only the revision template changes; Knative moves traffic by itself."""
    create_crds(here.client, foreign_crds() / "serving.knative.dev_services.yaml")
    services = f"/apis/serving.knative.dev/v1/namespaces/{here.system}/services"
    spec = {"template": {"spec": {"containers": [{"image": "x"}]}}}
    make(here, services, "gateway", apiVersion="serving.knative.dev/v1", kind="Service", spec=spec)
    path = f"{services}/gateway"
    with following(lambda: restart.restart(choice(here), "gateway")) as raised:
        wait_for(lambda: restarted(here, path), "the revision's template is another one")
        traffic = [{"revisionName": "gateway-2", "percent": 100}]
        made = {"latestCreatedRevisionName": "gateway-2", "latestReadyRevisionName": "gateway-2"}
        says(here, path, observedGeneration=2, **made, traffic=traffic)
    assert raised == []


@pytest.mark.parametrize(
    ("resource", "status", "left"),
    [
        ("deployments", {"observedGeneration": 1, "updatedReplicas": 3, "availableReplicas": 3}, "not begun yet"),
        ("deployments", {"observedGeneration": 2, "replicas": 4, "updatedReplicas": 1}, "1 of 3 pods are new"),
        ("deployments", {"observedGeneration": 2, "replicas": 4, "updatedReplicas": 3}, "1 old pods still end"),
        (
            "statefulsets",
            {"observedGeneration": 2, "replicas": 3, "updatedReplicas": 3, "readyReplicas": 2},
            "2 of 3 pods are ready",
        ),
        (
            "services",
            {"observedGeneration": 2, "latestCreatedRevisionName": "g-2", "latestReadyRevisionName": "g-1"},
            "revision g-2 is not ready yet",
        ),
        (
            "services",
            {
                "observedGeneration": 2,
                "latestCreatedRevisionName": "g-2",
                "latestReadyRevisionName": "g-2",
                "traffic": [{"revisionName": "g-1", "percent": 60}, {"revisionName": "g-2", "percent": 40}],
            },
            "40 % of requests go to revision g-2",
        ),
    ],
)
def test_a_roll_that_is_under_way_is_not_taken_for_done(resource: str, status: dict[str, Any], left: str) -> None:
    roll = restart.Roll("/path", resource, "/path")
    spec = {"replicas": 3, **roll.order(STAMP)["spec"]}
    body = {"metadata": {"generation": 2}, "spec": spec, "status": status}
    assert restart.remaining_work(roll, body, STAMP) == left


def test_a_roll_that_was_taken_back_is_not_taken_for_done() -> None:
    roll = restart.Roll("/path", "deployments", "/path")
    status = {"observedGeneration": 3, "replicas": 2, "updatedReplicas": 2, "availableReplicas": 2}
    for before in ("", "2026-11-27T23:00:00Z", "2026-11-28T00:00:00", "yesterday"):
        annotations = {restart.RESTARTED_AT: before}
        spec = {"replicas": 2, **as_kserve_would(annotations)["spec"]}
        body = {"metadata": {"generation": 3}, "spec": spec, "status": status}
        assert restart.remaining_work(roll, body, STAMP) == "not begun yet"


def test_what_cannot_be_restarted_is_said(here: Space, forwarding_kubelet: tuple[str, list[int]]) -> None:
    running(here, here.models, "llama-1", "kserve-container", forwarding_kubelet[0], {"shoal.dev/pool": POOL})
    with pytest.raises(CommandRefused, match="`shoal drain llama-1`"):
        restart.restart(choice(here), "llama-1")
    with pytest.raises(CommandRefused, match="does not exist"):
        restart.restart(choice(here), "bus")


@pytest.fixture
def replica(
    here: Space, forwarding_kubelet: tuple[str, list[int]], tmp_path: Path, bus_url: str
) -> Iterator[AgentProcess]:
    """A pod for which an agent process with its engine answers."""
    node, target = forwarding_kubelet
    running(here, here.models, "llama-1", "shoal-agent", node, {"shoal.dev/pool": POOL, "app": "llama"})
    engine = Engine(tmp_path)
    with engine.run(), AgentProcess(tmp_path, engine, bus_url).run() as agent:
        target.append(agent.port)
        wait_for(lambda: agent.phase() == "ready", "the replica is ready")
        yield agent


def ending(space: Space) -> bool:
    found = get(space, f"/api/v1/namespaces/{space.models}/pods/llama-1")
    return found is None or "deletionTimestamp" in found["metadata"]


def test_a_replica_is_drained_and_then_evicted(
    here: Space, replica: AgentProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the pool's disruption budget forbids eviction, the pod stays; after the timeout it accepts work again."""
    monkeypatch.setattr(drain, "_LOOK_S", 1.0)
    budgets = f"/apis/policy/v1/namespaces/{here.models}/poddisruptionbudgets"
    make(here, budgets, "llama", spec={"minAvailable": 1, "selector": {"matchLabels": {"app": "llama"}}})
    with pytest.raises(CommandRefused, match="may not be evicted now, so it accepts work again"):
        drain.drain(choice(here), "llama-1", 6.0)
    assert not ending(here)
    wait_for(lambda: replica.phase() == "ready", "it takes work again")
    here.client.request("delete", f"{budgets}/llama")
    drain.drain(choice(here), "llama-1", 60.0)
    assert ending(here)
    assert replica.phase() == "draining"


def test_a_replica_that_is_not_empty_in_time_takes_work_again(here: Space, replica: AgentProcess) -> None:
    """One second is too short: the gauges must be read after the drain was announced."""
    with pytest.raises(CommandRefused, match="requests are still running, so it accepts work again"):
        drain.drain(choice(here), "llama-1", 0.5)
    assert not ending(here)
    assert replica.phase() == "ready"


def test_drain_of_an_unknown_replica_is_rejected(here: Space) -> None:
    with pytest.raises(CommandRefused, match=r"there is no replica 'gateway-1'.*replicas: none"):
        drain.drain(choice(here), "gateway-1", 1.0)
    assert drain.agent_port({"spec": {"containers": [{"name": "shoal-agent"}]}}) == 8480
