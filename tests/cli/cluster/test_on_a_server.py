"""Commands for a cluster, through a real API server."""

import base64
import contextlib
import json
import os
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
import typer
from kubernetes.dynamic.exceptions import ConflictError
from websockets.exceptions import ConnectionClosed
from websockets.sync.server import ServerConnection, serve
from websockets.typing import Subprotocol

from functions.api import snapshot as snapshots
from functions.cli.cluster.access import ClusterChoice
from functions.cli.cluster.doctor import doctor
from functions.cli.cluster.logs import logs
from functions.cli.cluster.secrets import secrets
from functions.cli.cluster.status import events, status
from functions.cli.cluster.tunnel import TracesTunnel
from functions.cli.refused import CommandRefused
from functions.fleet.snapshots import SNAPSHOT_PATH
from tests.controller.kubernetes.api_server import ApiServer
from tests.controller.kubernetes.fixtures import TIMEOUT_S, Space, create, make_space
from tests.fleets import PROJECT
from tests.gateway.certificates import self_signed
from tests.ports import free_port
from tests.registry.catalogue_rig import published
from tests.registry.test_process import TOKEN as REGISTRY_TOKEN
from tests.registry.test_process import environment, registry

pytestmark = [pytest.mark.servers, pytest.mark.timeout(TIMEOUT_S)]
S3 = '{"access_key_id": "a", "secret_access_key": "b"}\n'


@pytest.fixture
def here(api_server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Space:
    """Create namespaces for this test and a kubeconfig for them."""
    space = make_space(api_server)
    monkeypatch.setenv("KUBECONFIG", str(api_server.kubeconfig(api_server.admin_token, tmp_path / "kubeconfig")))
    return space


def choice(space: Space, context: str | None = None) -> ClusterChoice:
    return ClusterChoice(context, space.system, space.models)


def kept(space: Space, namespace: str) -> dict[str, dict[str, str]]:
    found = space.client.request("get", f"/api/v1/namespaces/{namespace}/secrets", serializer=lambda _c, data: data)
    return {each["metadata"]["name"]: each["data"] for each in found["items"]}


def test_secrets_are_made_once(here: Space, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {}
    for word in ("read-s3", "registry-s3", "gateway-s3"):
        files[word] = tmp_path / word
        files[word].write_text(S3)
    with pytest.raises(typer.Exit):
        secrets(choice(here), files, rotate=None, dry_run=True, as_json=True)
    assert kept(here, here.system) == {}
    with pytest.raises(typer.Exit):
        secrets(choice(here), files, rotate=None, dry_run=False, as_json=False)
    told = capsys.readouterr().out
    assert "use --database-password FILE" in told
    assert "store a copy of the pepper outside of the cluster" in told
    first = kept(here, here.system)
    password = files["database-password"] = tmp_path / "password"
    password.write_text("secret\n")
    secrets(choice(here), files, rotate=None, dry_run=False, as_json=True)
    did = {(row["namespace"], row["name"]): row["do"] for row in json.loads(capsys.readouterr().out)["secrets"]}
    assert did.pop((here.system, "shoal-registry-database")) == "give"
    assert set(did.values()) == {"keep"}
    now = kept(here, here.system)
    assert {name: now[name] for name in first} == first, "what exists is kept"
    assert base64.b64decode(now["shoal-registry-database"]["password"]) == b"secret"
    models = kept(here, here.models)
    assert models["shoal-s3"] == now["shoal-s3"]
    assert not {"shoal-internal-token", "shoal-bus-password"} & models.keys()
    assert base64.b64decode(now["shoal-s3"]["s3.json"]) == S3.strip().encode()
    assert "shoal-pepper" not in models


def test_what_is_no_way_to_a_cluster_is_said(here: Space, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CommandRefused, match="the cluster cannot be reached"):
        secrets(choice(here, "nowhere"), {}, rotate=None, dry_run=True, as_json=False)
    wrong = tmp_path / "s3.json"
    wrong.write_text("{}")
    with pytest.raises(CommandRefused, match="access_key_id"):
        secrets(choice(here), {"read-s3": wrong}, rotate=None, dry_run=True, as_json=False)
    monkeypatch.setenv("KUBECONFIG", str(here.server.kubeconfig("not-a-token", tmp_path / "other")))
    with pytest.raises(CommandRefused, match="Unauthorized"):
        secrets(choice(here), {}, rotate=None, dry_run=True, as_json=False)


def test_a_namespace_that_is_not_there_is_said(here: Space, tmp_path: Path) -> None:
    with pytest.raises(CommandRefused, match="does not exist; does the namespace"):
        secrets(ClusterChoice(None, "no-such", here.models), {}, rotate=None, dry_run=False, as_json=False)


def test_the_doctor_looks_at_a_bare_server_and_at_what_is_there_then(
    here: Space, api_server: ApiServer, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit):
        doctor(choice(here), as_json=True)
    first = json.loads(capsys.readouterr().out)
    assert (first["ok"], first["server"]) == (False, api_server.url)
    levels = {each["check"]: each["level"] for each in first["findings"]}
    assert levels["Kubernetes"] == levels["namespaces"] == "ok"
    assert levels["Secrets"] == levels["gateway"] == levels["NetworkPolicies"] == "fail"
    assert levels["label shoal.dev/ingress"] == "fail"
    for name in (here.system, here.models):
        policy = {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
        make(here, f"/apis/networking.k8s.io/v1/namespaces/{name}/networkpolicies", "default-deny", spec=policy)
    labels = {"shoal.dev/ingress": "true"}
    make(here, "/api/v1/namespaces", f"ingress-of-{here.system}", labels=labels)
    node = {"allocatable": {"nvidia.com/gpu": "8"}, "conditions": [{"type": "Ready", "status": "True"}]}
    make(here, "/api/v1/nodes", f"node-of-{here.system}", labels={"topology.kubernetes.io/zone": "a"}, status=node)
    with pytest.raises(typer.Exit):
        doctor(choice(here), as_json=False)
    shown = capsys.readouterr().out
    assert "default deny in both namespaces" in shown
    assert f"ingress-of-{here.system}" in shown
    assert "8 nvidia.com/gpu" in shown
    assert "shoal-pepper is missing" in shown and "fix: shoal secrets" in shown


def test_the_doctor_says_what_it_may_not_read(
    here: Space, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make(here, f"/api/v1/namespaces/{here.system}/serviceaccounts", "nobody")
    token = here.server.token_of(here.system, "nobody")
    monkeypatch.setenv("KUBECONFIG", str(here.server.kubeconfig(token, tmp_path / "nobodys")))
    with contextlib.suppress(
        typer.Exit
    ):  # the exit status depends on whether another test file has created shoal's CRDs
        doctor(choice(here), as_json=True)
    levels = {each["check"]: each for each in json.loads(capsys.readouterr().out)["findings"]}
    assert levels["Secrets"]["level"] == levels["namespaces"]["level"] == levels["zones"]["level"] == "unknown"
    assert "may not read Secrets" in levels["Secrets"]["words"]


def make(space: Space, path: str, name: str, *, labels: dict[str, str] | None = None, **parts: object) -> None:
    create(space.client, path, {"metadata": {"name": name, "labels": labels or {}}, **parts})


@pytest.fixture
def kubelet(here: Space, tmp_path: Path) -> Iterator[str]:
    """Yield the name of a node whose kubelet is played by the test: it serves logs to the API server."""
    certificate, key = self_signed(tmp_path)

    class Kubelet(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path, _, query = self.path.partition("?")
            body = f"2026-11-23T10:00:00.5Z {path} tail {parse_qs(query)['tailLines'][0]}\n".encode()
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Kubelet)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    server.socket = tls.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    name = f"kubelet-of-{here.system}"
    status = {
        "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": server.server_port}},
    }
    make(here, "/api/v1/nodes", name, status=status)
    yield name
    server.shutdown()
    server.server_close()


def installed(space: Space, node: str) -> None:
    """Create pods of an installation, as its controllers would, and a rejected tenant."""
    for role in ("gateway", "registry", "controller", "bus"):
        running(space, space.system, f"{role}-1", role, node, {"app.kubernetes.io/name": role})
    running(space, space.models, "llama-1", "kserve-container", node, {"shoal.dev/pool": "llama"})


def running(space: Space, namespace: str, name: str, container: str, node: str, labels: dict[str, str]) -> None:
    accounts = f"/api/v1/namespaces/{namespace}/serviceaccounts"
    with contextlib.suppress(ConflictError):
        make(space, accounts, "default")
    spec = {"nodeName": node, "containers": [{"name": container, "image": "x"}]}
    make(space, f"/api/v1/namespaces/{namespace}/pods", name, labels=labels, spec=spec)
    status = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}
    path = f"/api/v1/namespaces/{namespace}/pods/{name}/status"
    kind = "application/merge-patch+json"
    space.client.request("patch", path, body=status, content_type=kind, serializer=lambda _c, data: data)


def test_status_and_logs_of_an_installation(here: Space, kubelet: str, capsys: pytest.CaptureFixture[str]) -> None:
    installed(here, kubelet)
    record = {"lastAppliedRevision": "main@abc", "history": "[]"}
    make(here, f"/api/v1/namespaces/{here.system}/configmaps", "shoal-controller", data=record)
    status(choice(here), as_json=True)
    told = json.loads(capsys.readouterr().out)
    assert told["ready"]
    assert [each["ready"] for each in told["processes"]] == [1, 1, 1, 1]
    assert [each["replica_id"] for each in told["replicas"]] == ["llama-1"]
    assert told["revision"]["last_applied"] == "main@abc"
    logs(choice(here), "gateway", follow=False, lines=7)
    assert capsys.readouterr().out == f"/containerLogs/{here.system}/gateway-1/gateway tail 7\n"
    logs(choice(here), "llama", follow=False, lines=3)
    assert capsys.readouterr().out == f"/containerLogs/{here.models}/llama-1/kserve-container tail 3\n"


def test_status_of_nothing_is_not_ready_and_events_are_told(here: Space, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit):
        status(choice(here), as_json=False)
    assert "there is no pod" in capsys.readouterr().out
    events(choice(here), last=10, warnings=False, as_json=False)
    assert "there are no events" in capsys.readouterr().out
    about = {"kind": "Tenant", "name": "acme", "namespace": here.system}
    parts = {"involvedObject": about, "type": "Warning", "reason": "Refused", "message": "unknown tier", "count": 2}
    make(here, f"/api/v1/namespaces/{here.system}/events", "one", **parts)
    events(choice(here), last=10, warnings=True, as_json=True)
    (row,) = json.loads(capsys.readouterr().out)["events"]
    assert (row["object"], row["reason"], row["count"]) == ("Tenant/acme", "Refused", 2)


@pytest.fixture
def forwarding_kubelet(here: Space, tmp_path: Path) -> Iterator[tuple[str, list[int]]]:
    """A node whose kubelet forwards ports to the process whose port the test puts into the list."""
    certificate, key = self_signed(tmp_path)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    target: list[int] = []

    def forward(connection: ServerConnection) -> None:
        assert connection.request is not None
        port = int(parse_qs(urlsplit(connection.request.path).query)["port"][0])
        for channel in (0, 1):  # data, errors
            connection.send(bytes([channel]) + port.to_bytes(2, "little"))
        with socket.create_connection(("127.0.0.1", target[0])) as process:
            threading.Thread(target=answers, args=(process, connection), daemon=True).start()
            for frame in connection:
                assert isinstance(frame, bytes) and frame[0] == 0
                process.sendall(frame[1:])

    def answers(process: socket.socket, connection: ServerConnection) -> None:
        with contextlib.suppress(OSError, ConnectionClosed):
            while block := process.recv(65536):
                connection.send(b"\0" + block)

    with serve(forward, "127.0.0.1", 0, ssl=tls, subprotocols=[Subprotocol("v4.channel.k8s.io")]) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        name = f"forwarding-{here.system}"
        endpoint = {"kubeletEndpoint": {"Port": server.socket.getsockname()[1]}}
        addresses = [{"type": "InternalIP", "address": "127.0.0.1"}]
        make(here, "/api/v1/nodes", name, status={"addresses": addresses, "daemonEndpoints": endpoint})
        yield name, target
        server.shutdown()


def test_the_registry_is_reached_by_a_kubeconfig_alone(
    here: Space, forwarding_kubelet: tuple[str, list[int]], tmp_path: Path
) -> None:
    """The operator's commands reach a registry process, which replaces the pod's, through the API server."""
    node, target = forwarding_kubelet
    port = free_port()
    target.append(port)
    env = os.environ | {"SHOAL_CLI_CONTEXT": "test", "SHOAL_CLI_NAMESPACE": here.system}

    def shoal(*arguments: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "functions.cli.main", *arguments]
        return subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)

    assert "no pod of the registry is ready" in shoal("rollout", "ls").stderr
    running(here, here.system, "registry-1", "registry", node, {"app.kubernetes.io/name": "registry"})
    assert "`shoal secrets` creates it" in shoal("rollout", "ls").stderr
    data = {"internal-token": base64.b64encode(f"{REGISTRY_TOKEN}\n".encode()).decode()}
    make(here, f"/api/v1/namespaces/{here.system}/secrets", "shoal-internal-token", data=data)
    (tmp_path / "pepper").write_bytes(b"p" * 32)
    settings = environment(tmp_path, port, SHOAL_REGISTRY_PEPPER_FILE=str(tmp_path / "pepper"))
    with registry(settings, f"http://127.0.0.1:{port}") as client:
        assert client.put(SNAPSHOT_PATH, content=snapshots.encode(published())).is_success
        made = shoal("key", "create", "acme", "--id", "by-kubeconfig")
        assert made.returncode == 0, made.stderr
        assert made.stdout.startswith("shoal_live_by-kubeconfig_")
        assert "by-kubeconfig" in shoal("key", "ls", "acme").stdout
        assert json.loads(shoal("rollout", "ls", "-o", "json").stdout) == {"rollouts": []}
        policies = tmp_path / "fleet" / "policies"
        policies.mkdir(parents=True)
        (policies / "quotas.yaml").write_text((PROJECT / "policies" / "quotas.yaml").read_text())
        compared = shoal("diff", str(tmp_path / "fleet"), "-o", "json")
        assert compared.returncode == 0, compared.stderr
        found = json.loads(compared.stdout)
        assert (found["epoch"], found["processes"]) == (published().epoch, []), "what runs is the cluster's"
        assert found["changes"]
        told = client.get("/v1/tenants/acme/keys").json()["data"]
        assert [row["id"] for row in told] == ["by-kubeconfig"]
        command = [sys.executable, "-m", "functions.cli.main", "console"]
        with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as page:
            assert page.stdout is not None
            url = page.stdout.readline().strip()
            assert "<html" in httpx.get(url, timeout=60).text.lower()
            page.terminate()


def test_the_trace_store_is_reached_by_a_kubeconfig_alone(
    here: Space, forwarding_kubelet: tuple[str, list[int]]
) -> None:
    """A server replaces the store's pod; the password is from its Secret."""
    node, target = forwarding_kubelet

    class Store(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-length", "3")
            self.end_headers()
            self.wfile.write(b"Ok.")

        def log_message(self, *_: object) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Store) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        target.append(server.server_port)
        with pytest.raises(CommandRefused, match="no pod of the trace-store is ready"):
            TracesTunnel(choice(here))
        running(here, here.system, "trace-store-0", "clickhouse", node, {"app.kubernetes.io/name": "trace-store"})
        with pytest.raises(CommandRefused, match="no Secret shoal-trace-store"):
            TracesTunnel(choice(here))
        data = {"trace-store-password": base64.b64encode(b"of-traces\n").decode()}
        make(here, f"/api/v1/namespaces/{here.system}/secrets", "shoal-trace-store", data=data)
        with contextlib.closing(TracesTunnel(choice(here))) as tunnel:
            assert tunnel.password == "of-traces"
            assert httpx.get(f"{tunnel.url}/ping", timeout=60).text == "Ok."
        server.shutdown()
