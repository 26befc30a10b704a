"""An installation on Kubernetes, reached through kubectl, the ingress and shoal's commands.

Nothing here knows how the cluster was made. What it needs comes from the environment:

    KUBECONFIG            a user who may do what docs/how-to/kubernetes.md does
    SHOAL_CLUSTER_URL     where the ingress answers, such as http://10.96.1.2 or https://llm.example.com
    SHOAL_CLUSTER_HOST    the Host header there; left out: the one that Knative gave the gateway, or the URL's own
                          where that is inside the cluster only (components/public-https)
    SHOAL_CLUSTER_KILL    a command that kills a container as the kernel does, with {node} and {container} for their
                          names; left out: the pod is deleted by force
    SHOAL_CLUSTER_POWER_OFF, SHOAL_CLUSTER_POWER_ON
                          commands that take a node's power away and give it back, with {node}: left out, none is lost
    SHOAL_CLUSTER_GIT     where the installation follows git: the repository, as it can be pushed to from here
    SHOAL_CLUSTER_OVERLAY, SHOAL_CLUSTER_INSTALL
                          the folder to delete, and a command that installs it again: without both nothing is removed
"""

import json
import os
import re
import select
import shlex
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
from prometheus_client.parser import text_string_to_metric_families

Body = dict[str, Any]
SYSTEM, MODELS = "shoal", "shoal-models"
FIELD_MANAGER = "shoal-acceptance"
SHOAL = [sys.executable, "-m", "functions.cli.main"]
PROJECT = Path(__file__).parents[2]
ANSWER_S = 60.0
_FORWARDING = re.compile(r"127\.0\.0\.1:(\d+)")
_FORWARD_S = 30.0
_AUTHORITY = "SHOAL_CLUSTER_CA"
_VISIBILITY = "networking.knative.dev/visibility"


@dataclass(frozen=True, slots=True)
class Pod:
    namespace: str
    name: str
    node: str
    address: str
    containers: dict[str, str]  # container id at the node's runtime, by name
    restarts: int


@dataclass(frozen=True, slots=True)
class Installation:
    url: str
    host: str
    pool: str

    def kubectl(self, *arguments: str, stdin: str | None = None, timeout_s: float = 180.0, check: bool = True) -> str:
        """Run kubectl and return its output; with `check=False` including stderr."""
        done = subprocess.run(
            ["kubectl", *arguments], input=stdin, capture_output=True, text=True, timeout=timeout_s, check=False
        )
        assert done.returncode == 0 or not check, f"kubectl {shlex.join(arguments)}:\n{done.stdout}{done.stderr}"
        return done.stdout if check else done.stdout + done.stderr

    def get(self, *arguments: str, namespace: str = SYSTEM) -> Body:
        found: Body = json.loads(self.kubectl("-n", namespace, "get", *arguments, "-o", "json"))
        return found

    def exists(self, *arguments: str, namespace: str = SYSTEM) -> bool:
        return bool(self.kubectl("-n", namespace, "get", *arguments, "--ignore-not-found", "-o", "name").strip())

    def wait(self, condition: str, *what: str, namespace: str = SYSTEM, timeout_s: float = 300.0) -> float:
        """Run `kubectl wait` and return the seconds it took."""
        began_s = time.monotonic()
        self.kubectl(
            "-n",
            namespace,
            "wait",
            f"--for={condition}",
            *what,
            f"--timeout={timeout_s:.0f}s",
            timeout_s=timeout_s + 30,
        )
        return time.monotonic() - began_s

    def apply(self, *objects: Body) -> None:
        document = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
        self.kubectl(
            "apply", "--server-side", "--force-conflicts", f"--field-manager={FIELD_MANAGER}", "-f", "-", stdin=document
        )

    def patch(self, what: str, change: Body, namespace: str = SYSTEM) -> None:
        self.kubectl(
            "-n", namespace, "patch", what, "--type=merge", f"--field-manager={FIELD_MANAGER}", "-p", json.dumps(change)
        )

    def source(self) -> str:
        """Return the controller's source of objects: `kubernetes` or `git`."""
        containers = self.get("deployment", "controller")["spec"]["template"]["spec"]["containers"]
        return next(
            str(each["value"])
            for container in containers
            for each in container["env"]
            if each["name"] == "SHOAL_CONTROLLER_SOURCE"
        )

    def pods(self, role: str) -> list[Pod]:
        """Return pods of a role (gateway, registry, controller, bus, engine) that are ready and not terminating."""
        namespace = MODELS if role == "engine" else SYSTEM
        selector = {
            "engine": f"shoal.dev/pool={self.pool}",
            "gateway": "serving.knative.dev/service=gateway",
            "registry": "serving.knative.dev/service=registry",
        }.get(role, f"app.kubernetes.io/name={role}")
        return self.ready_pods(namespace, "-l", selector)

    def ready_pods(self, namespace: str, *selection: str) -> list[Pod]:
        found = self.get("pods", *selection, namespace=namespace)["items"]
        return [_pod(each) for each in found if _is_ready(each) and "deletionTimestamp" not in each["metadata"]]

    def leader(self) -> Pod:
        holder = str(self.get("lease", "shoal-controller")["spec"]["holderIdentity"])
        return next(pod for pod in self.pods("controller") if holder.startswith(pod.name))

    def kill(self, pod: Pod, container: str) -> str:
        """Kill the container's process if the environment says how, else force-delete the pod; return which it was."""
        command = os.environ.get("SHOAL_CLUSTER_KILL")
        if command:
            told = command.format(node=pod.node, container=pod.containers[container])
            subprocess.run(shlex.split(told), check=True, capture_output=True, timeout=60)
            return "kill -9"
        self.kubectl("-n", pod.namespace, "delete", "pod", pod.name, "--grace-period=0", "--force", "--wait=false")
        return "pod deleted by force"

    @contextmanager
    def forwarded(self, pod: Pod, port: int) -> Iterator[str]:
        """Yield a local address that is forwarded to the pod's port, regardless of NetworkPolicies."""
        arguments = ["kubectl", "-n", pod.namespace, "port-forward", f"pod/{pod.name}", f":{port}"]
        with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
            try:
                assert process.stdout is not None
                ready, _, _ = select.select([process.stdout], [], [], _FORWARD_S)
                line = process.stdout.readline() if ready else ""
                found = _FORWARDING.search(line)
                assert found is not None, f"no port-forward to {pod.name}: {line}"
                yield f"http://127.0.0.1:{found[1]}"
            finally:
                process.terminate()

    def metric(self, pod: Pod, port: int, name: str, **labels: str) -> float:
        with self.forwarded(pod, port) as url:
            page = httpx.get(f"{url}/metrics", timeout=ANSWER_S).text
        return sum(
            sample.value
            for family in text_string_to_metric_families(page)
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )

    def client(self, key: str, timeout_s: float = ANSWER_S) -> httpx.Client:
        """Return a client of the ingress."""
        return httpx.Client(
            base_url=f"{self.url}/v1", headers=self.headers(key), verify=_tls(), timeout=timeout_s, trust_env=False
        )

    def async_client(self, key: str, timeout_s: float = ANSWER_S, connections: int = 100) -> httpx.AsyncClient:
        limits = httpx.Limits(max_connections=connections, max_keepalive_connections=connections)
        return httpx.AsyncClient(
            base_url=f"{self.url}/v1",
            headers=self.headers(key),
            verify=_tls(),
            timeout=timeout_s,
            limits=limits,
            trust_env=False,
        )

    def headers(self, key: str) -> dict[str, str]:
        return {"authorization": f"Bearer {key}", "host": self.host}

    def shoal(self, *arguments: str, stdin: str | None = None, **variables: str) -> "subprocess.CompletedProcess[str]":
        """Run a shoal command as on a machine without a fleet."""
        authority = {"SSL_CERT_FILE": os.environ[_AUTHORITY]} if os.environ.get(_AUTHORITY) else {}
        environment = os.environ | {"SHOAL_STATE_DIR": "/nonexistent"} | authority | variables
        return subprocess.run(
            [*SHOAL, *arguments], cwd=PROJECT, env=environment, input=stdin,
            capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip

    @contextmanager
    def named_address(self) -> Iterator[str]:
        """Yield a gateway URL for clients that send its own name as Host: the ingress, or a gateway's pod."""
        if urlsplit(self.url).hostname == self.host:
            yield self.url
            return
        with self.forwarded(self.pods("gateway")[0], 8080) as url:
            yield url

    @contextmanager
    def operator(self) -> Iterator[Callable[..., str]]:
        """Yield a runner for registry commands, with port-forward and internal token (docs/how-to/kubernetes.md)."""
        token = self.secret("shoal-internal-token", "internal-token")
        with self.forwarded(self.pods("registry")[0], 8080) as url:

            def run(*arguments: str) -> str:
                done = self.shoal(*arguments, SHOAL_CLI_REGISTRY_URL=url, SHOAL_CLI_KEY=token)
                assert done.returncode == 0, f"shoal {shlex.join(arguments)}:\n{done.stdout}{done.stderr}"
                return done.stdout.strip()

            yield run

    def secret(self, name: str, key: str) -> str:
        template = f"{{{{index .data {json.dumps(key)} | base64decode}}}}"
        return self.kubectl("-n", SYSTEM, "get", "secret", name, "-o", f"go-template={template}").strip()


def found_installation() -> Installation | str:
    """Return the installation that the environment names, or the reason why there is none."""
    missing = [name for name in ("KUBECONFIG", "SHOAL_CLUSTER_URL") if not os.environ.get(name)]
    if missing:
        return f"{' and '.join(missing)} not set: docs/how-to/accept-a-cluster.md says how to get a cluster"
    url = os.environ["SHOAL_CLUSTER_URL"].rstrip("/")
    bare = Installation(url, "", "")
    pools = bare.get("inferenceservices", "-l", "shoal.dev/pool", namespace=MODELS)["items"]
    if not pools:
        return f"no pool in {MODELS}: install shoal first (docs/how-to/kubernetes.md)"
    return Installation(
        url, os.environ.get("SHOAL_CLUSTER_HOST") or _host(bare), str(pools[0]["metadata"]["labels"]["shoal.dev/pool"])
    )


def _host(bare: Installation) -> str:
    """Return the gateway's host name at the ingress: the public one if there is one, else its own."""
    gateway = bare.get("ksvc", "gateway")
    is_inside = gateway["metadata"].get("labels", {}).get(_VISIBILITY) == "cluster-local"
    return urlsplit(bare.url if is_inside else gateway["status"]["url"]).hostname or ""


def _tls() -> ssl.SSLContext:
    """Return the TLS context for the ingress; SHOAL_CLUSTER_CA names the file of a private CA."""
    return ssl.create_default_context(cafile=os.environ.get(_AUTHORITY) or None)


def wait_until(what: str, condition: Callable[[], bool], timeout_s: float, every_s: float = 0.1) -> float:
    """Poll until the condition holds and return the seconds that took; fail with `what` at the timeout."""
    began_s = time.monotonic()
    while time.monotonic() - began_s < timeout_s:
        if condition():
            return time.monotonic() - began_s
        time.sleep(every_s)
    raise AssertionError(f"{what}: not within {timeout_s:.0f} s")


def conditions(body: Body) -> dict[str, Body]:
    return {each["type"]: each for each in body.get("status", {}).get("conditions", ())}


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")


def _is_ready(pod: Body) -> bool:
    return conditions(pod).get("Ready", {}).get("status") == "True"


def _pod(body: Body) -> Pod:
    statuses = body["status"]["containerStatuses"]
    return Pod(
        namespace=body["metadata"]["namespace"],
        name=body["metadata"]["name"],
        node=body["spec"]["nodeName"],
        address=body["status"]["podIP"],
        containers={each["name"]: each["containerID"].rpartition("/")[2] for each in statuses},
        restarts=sum(each["restartCount"] for each in statuses),
    )
