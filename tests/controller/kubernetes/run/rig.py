"""A whole installation for one test: API server with CRDs, a real registry, controllers as processes."""

import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import httpx

from functions.api import snapshot as snapshots
from functions.api.snapshot import Snapshot
from tests.controller.kubernetes.api_server import budgets_path
from tests.controller.kubernetes.fixtures import Space, create
from tests.controller.kubernetes.run.waiting import WAIT_S, until
from tests.ports import free_port
from tests.roles import RoleProcess, start

TOKEN = "internal-token"
ROOT = Path(__file__).parents[4]
SHOAL_CRDS = ROOT / "manifests" / "base" / "crds"
SHOAL = "shoal.dev/v1alpha1"
PLURALS = {
    "Tenant": "tenants",
    "Model": "models",
    "QuotaPolicy": "quotapolicies",
    "RoutingPolicy": "routingpolicies",
    "AdmissionPolicy": "admissionpolicies",
    "RolloutPolicy": "rolloutpolicies",
    "AutoscalingPolicy": "autoscalingpolicies",
}
NO_BUS = "valkey://127.0.0.1:1/0"
_PORT = re.compile(rb"health and metrics on port (\d+)")


@dataclass
class ControllerProcess:
    process: RoleProcess
    log_file: Path

    @property
    def log(self) -> str:
        return self.log_file.read_text(errors="replace")

    @property
    def url(self) -> str:
        found: list[bytes] = []

        def said() -> bool:
            assert self.process.poll() is None, self.log
            found[:] = _PORT.findall(self.log_file.read_bytes())
            return bool(found)

        until(said, "the controller says its port")
        return f"http://127.0.0.1:{int(found[-1])}"

    def metric(self, name: str, **labels: str) -> float:
        text = httpx.get(f"{self.url}/metrics", timeout=30).text
        wanted = "{" + ",".join(f'{key}="{value}"' for key, value in labels.items()) + "}" if labels else ""
        for line in text.splitlines():
            if line.startswith(f"shoal_controller_{name}{wanted} "):
                return float(line.rpartition(" ")[2])
        assert labels, f"no metric {name} in:\n{text}"
        return 0.0  # nothing counted under these labels yet

    @property
    def leads(self) -> bool:
        return self.metric("leader") == 1

    def send(self, number: int) -> None:
        os.kill(self.process.pid, number)

    def end(self, number: int = signal.SIGKILL) -> int:
        """End the process with a signal and return its exit status."""
        if self.process.poll() is None:
            self.send(number)
        return self.process.wait(WAIT_S)


@dataclass
class Rig:
    space: Space
    folder: Path
    registry_url: str
    controllers: list[ControllerProcess] = field(default_factory=list)

    def controller(
        self, *, token: str = "", module: str = "functions.controller.kubernetes", **changes: str
    ) -> ControllerProcess:
        """Start a controller. Settings have their names in capitals, without the prefix."""
        number = len(self.controllers)
        kubeconfig = self.folder / f"kubeconfig-{number}"
        self.space.server.kubeconfig(token or self.space.server.admin_token, kubeconfig)
        settings = {
            "NAMESPACE": self.space.system,
            "MODELS_NAMESPACE": self.space.models,
            "KUBECONFIG": str(kubeconfig),
            "HOST": "127.0.0.1",
            "PORT": "0",
            "REGISTRY_URL": self.registry_url,
            "INTERNAL_TOKEN_FILE": str(self.folder / "token"),
            "SETTLE_S": "0.1",
            "CONTROL_POLL_S": "0.3",
            "PUBLISH_RETRY_S": "1",
            "RESYNC_S": "3600",
            "LOG_LEVEL": "INFO",
            **changes,
        }
        environment = {**os.environ, **{f"SHOAL_CONTROLLER_{name}": value for name, value in settings.items()}}
        log_file = self.folder / f"controller-{number}.log"
        with log_file.open("wb") as log:
            process = start(module, env=environment, stdout=log, stderr=log, cwd=ROOT)
        started = ControllerProcess(process, log_file)
        self.controllers.append(started)
        return started

    # -- what people and Flux do --------------------------------------------------------------------------------------

    def path(self, kind: str, name: str = "") -> str:
        if kind == "InferenceService":
            base = f"/apis/serving.kserve.io/v1beta1/namespaces/{self.space.models}/inferenceservices"
        else:
            base = f"/apis/{SHOAL}/namespaces/{self.space.system}/{PLURALS[kind]}"
        return f"{base}/{name}" if name else base

    def create(self, kind: str, name: str, spec: dict[str, Any], **metadata: Any) -> dict[str, Any]:
        api_version = "serving.kserve.io/v1beta1" if kind == "InferenceService" else SHOAL
        head = {"apiVersion": api_version, "kind": kind, "metadata": {"name": name, **metadata}}
        return create(self.space.client, self.path(kind), {**head, "spec": spec})

    def patch(self, kind: str, name: str, patch: dict[str, Any]) -> None:
        path = self.path(kind, name)
        self.space.client.request("patch", path, body=patch, content_type="application/merge-patch+json")

    def delete(self, kind: str, name: str) -> None:
        self.space.client.request("delete", self.path(kind, name))

    def get(self, kind: str, name: str) -> dict[str, Any] | None:
        return self.get_path(self.path(kind, name))

    def get_path(self, path: str) -> dict[str, Any] | None:
        from kubernetes.dynamic.exceptions import NotFoundError

        try:
            found: dict[str, Any] = self.space.client.request("get", path, serializer=lambda _client, data: data)
        except NotFoundError:
            return None
        return found

    def record(self) -> dict[str, Any]:
        found = self.get_path(f"/api/v1/namespaces/{self.space.system}/configmaps/shoal-controller")
        return found or {}

    def annotate(self, **annotations: str | None) -> None:
        path = f"/api/v1/namespaces/{self.space.system}/configmaps/shoal-controller"
        named = {f"shoal.dev/{name.replace('_', '-')}": value for name, value in annotations.items()}
        body = {"metadata": {"annotations": named}}
        self.space.client.request("patch", path, body=body, content_type="application/merge-patch+json")

    def budgets(self) -> list[str]:
        """Return the budgets' names. Like a garbage collector, remove those being deleted in the foreground."""
        found = self.get_path(self.budgets_path) or {"items": []}
        for item in found["items"]:
            if "deletionTimestamp" in item["metadata"]:
                body = {"metadata": {"finalizers": None}}
                path = f"{self.budgets_path}/{item['metadata']['name']}"
                self.space.client.request("patch", path, body=body, content_type="application/merge-patch+json")
        return sorted(item["metadata"]["name"] for item in found["items"])

    @cached_property
    def budgets_path(self) -> str:
        return budgets_path(self.space.client, self.space.models)

    # -- what there is to see -----------------------------------------------------------------------------------------

    def conditions(self, kind: str, name: str) -> dict[str, dict[str, Any]]:
        found = self.get(kind, name) or {}
        return {each["type"]: each for each in found.get("status", {}).get("conditions", [])}

    def is_ready(self, kind: str, name: str) -> bool:
        found = self.get(kind, name) or {"metadata": {}}
        ready = self.conditions(kind, name).get("Ready", {})
        generation = found["metadata"].get("generation")
        return ready.get("status") == "True" and ready.get("observedGeneration") == generation

    def events(self, name: str, *, namespace: str = "") -> dict[str, dict[str, Any]]:
        """Return the latest event per reason about the object, as `kubectl describe` finds them."""
        about = f"fieldSelector=involvedObject.name={name}"
        found = self.get_path(f"/api/v1/namespaces/{namespace or self.space.system}/events?{about}") or {"items": []}
        return {each["reason"]: each for each in sorted(found["items"], key=lambda each: each["eventTime"])}

    def snapshot(self) -> Snapshot | None:
        headers = {"authorization": f"Bearer {TOKEN}"}
        answer = httpx.get(f"{self.registry_url}/v1/snapshot", headers=headers, timeout=30)
        return snapshots.decode(answer.content) if answer.status_code == 200 else None

    def tenants(self) -> list[str]:
        snapshot = self.snapshot()
        return [tenant.name for tenant in snapshot.tenants] if snapshot is not None else []


@contextmanager
def installation(space: Space, folder: Path, *, bus_url: str = NO_BUS) -> Iterator[Rig]:
    """Run a registry, and stop every controller at the end."""
    (folder / "token").write_text(TOKEN + "\n")
    (folder / "pepper").write_text("p" * 32 + "\n")
    with _registry(folder, bus_url) as url:
        rig = Rig(space, folder, url)
        try:
            yield rig
        finally:
            for controller in rig.controllers:
                controller.end()


@contextmanager
def _registry(folder: Path, bus_url: str) -> Iterator[str]:
    port = free_port()
    environment = {
        **os.environ,
        "SHOAL_REGISTRY_PORT": str(port),
        "SHOAL_REGISTRY_INTERNAL_TOKEN_FILE": str(folder / "token"),
        "SHOAL_REGISTRY_PEPPER_FILE": str(folder / "pepper"),
        "SHOAL_REGISTRY_STATE_DIR": str(folder / "registry"),
        "SHOAL_REGISTRY_BUS_URL": bus_url,
        "SHOAL_REGISTRY_TLS_CERT_FILE": "",
    }
    log_file = folder / "registry.log"
    with log_file.open("wb") as log:
        process = start("functions.registry", env=environment, stdout=log, stderr=log)
    url = f"http://127.0.0.1:{port}"
    try:
        deadline_s = time.monotonic() + WAIT_S
        while not _answers(f"{url}/readyz"):
            assert process.poll() is None, log_file.read_text()
            assert time.monotonic() < deadline_s, "the registry is not ready"
            time.sleep(0.05)
        yield url
    finally:
        process.kill()
        process.wait(WAIT_S)


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=30).status_code == 200
    except httpx.TransportError:
        return False


# -- objects that are right --------------------------------------------------------------------------------------------

POOL = "base-a"


def service_spec(*, replicas: int = 1, context: int = 2048) -> dict[str, Any]:
    model = {"modelFormat": {"name": "vLLM"}, "args": [f"--max-model-len={context}"]}
    return {"predictor": {"minReplicas": replicas, "maxReplicas": max(replicas, 1), "model": model}}


def tenant_spec(*, tier: str = "free", key: str = "", models: tuple[str, ...] = ()) -> dict[str, Any]:
    keys = [{"id": key, "hmacSha256": "0" * 64}] if key else []
    return {"tier": tier, "models": list(models), "keys": keys}


def model_spec(id_: str, *, version: str = "v1") -> dict[str, Any]:
    versions = [{"name": version, "artifact": f"s3://shoal-models/{id_}/{version}", "digest": "sha256:" + "a" * 64}]
    return {"id": id_, "type": "lora", "base": POOL, "versions": versions, "channels": {"stable": version}}


def populate(rig: Rig, *, tenants: int = 2, models: int = 2) -> None:
    """Create a pool, a tier, tenants and models in any order, as Flux does."""
    for number in range(models):
        rig.create("Model", f"t0.m{number}", model_spec(f"t0/m{number}"))
    for number in range(tenants):
        rig.create("Tenant", f"t{number}", tenant_spec(key=f"k{number}", models=(f"t{number}/*",)))
    rig.create("QuotaPolicy", "free", {"weight": 1.0, "limits": {"requestsPerMinute": 60}})
    rig.create("InferenceService", POOL, service_spec(), labels={"shoal.dev/pool": POOL})


# -- what a fleet at rest looks like -----------------------------------------------------------------------------------


def settled(rig: Rig, controller: ControllerProcess) -> None:
    """Wait until every created object is Ready and no write is pending."""
    for kind in PLURALS:
        for name in names(rig, kind):
            until(lambda kind=kind, name=name: rig.is_ready(kind, name), f"{kind} {name} is Ready; {controller.log}")
    until(lambda: controller.metric("pending_status_writes") == 0, "every status is written")


def names(rig: Rig, kind: str) -> list[str]:
    found = rig.get_path(rig.path(kind)) or {"items": []}
    return [item["metadata"]["name"] for item in found["items"]]


def versions(rig: Rig) -> dict[str, str]:
    """Return the resourceVersion of every object that a controller may write, except the Lease."""
    found: dict[str, str] = {}
    paths = [rig.path(kind) for kind in (*PLURALS, "InferenceService")]
    for path in [*paths, rig.budgets_path]:
        for item in (rig.get_path(path) or {"items": []})["items"]:
            found[f"{path}/{item['metadata']['name']}"] = item["metadata"]["resourceVersion"]
    found["record"] = rig.record()["metadata"]["resourceVersion"]
    return found
