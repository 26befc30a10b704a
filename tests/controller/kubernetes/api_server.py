"""A real Kubernetes API server of a test's own: etcd and kube-apiserver on loopback, with RBAC.

    server = ApiServer.start(folder, assets)
    server.client(server.admin_token)            # a DynamicClient
    server.stop(); server.start_again()          # the same port, the same etcd: what clients see of a restart

There is no controller manager: nothing collects garbage, no Deployment gets pods, no namespace is finalized.
The binaries come from the folder that the environment variable KUBEBUILDER_ASSETS names (the convention of envtest).
"""

import ctypes
import json
import secrets
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.request
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from kubernetes.client import Configuration
from kubernetes.dynamic import DynamicClient

from functions.controller.kubernetes.objects import BUDGET, BUDGET_OF_OLD_CLUSTERS, Kind
from functions.controller.kubernetes.run.client import connect
from tests.gateway.certificates import self_signed

START_WAIT_S = 240.0
STOP_WAIT_S = 30.0
START_ATTEMPTS = 5
_PR_SET_PDEATHSIG = 1


class ServerBroken(Exception):
    """The server did not start; the message ends with its log."""


class PortTaken(ServerBroken):
    """Another process took the free port before the server could bind it."""


@dataclass
class ApiServer:
    folder: Path
    assets: Path
    port: int
    etcd_port: int
    etcd_peer_port: int
    certificate: Path
    key: Path
    admin_token: str
    _etcd: "subprocess.Popen[bytes] | None" = None
    _server: "subprocess.Popen[bytes] | None" = None
    _logs: list[Any] = field(default_factory=list)

    @classmethod
    def start(cls, folder: Path, assets: Path) -> "ApiServer":
        """Start both processes on free ports; try other ports if another process was faster."""
        for attempt in range(START_ATTEMPTS - 1):
            with suppress(PortTaken):
                return cls._start(folder / str(attempt), assets)
        return cls._start(folder / "last", assets)

    @classmethod
    def _start(cls, folder: Path, assets: Path) -> "ApiServer":
        folder.mkdir(parents=True, exist_ok=True)
        certificate, key = self_signed(folder)
        token = secrets.token_hex(16)
        (folder / "tokens.csv").write_text(f'{token},admin,admin,"system:masters"\n')
        _service_account_key(folder / "sa.key")
        port, etcd_port, peer_port = _free_ports(3)
        server = cls(folder, assets, port, etcd_port, peer_port, certificate, key, token)
        try:
            server.start_etcd()
            server._start_server()
        except BaseException:
            server.close()
            raise
        return server

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    @property
    def etcd_url(self) -> str:
        return f"http://127.0.0.1:{self.etcd_port}"

    def configuration(self, token: str) -> Configuration:
        configuration = Configuration(host=self.url, ssl_ca_cert=str(self.certificate))
        configuration.api_key = {"BearerToken": f"Bearer {token}"}
        return configuration

    def client(self, token: str | None = None) -> DynamicClient:
        """Return a client with this token, by default the administrator's."""
        return connect(self.configuration(token or self.admin_token))

    def kubeconfig(self, token: str, file: Path) -> Path:
        """Write a kubeconfig file for that token, as JSON, which is valid YAML."""
        cluster = {"server": self.url, "certificate-authority": str(self.certificate)}
        context = {"cluster": "test", "user": "test"}
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": "test", "user": {"token": token}}],
            "contexts": [{"name": "test", "context": context}],
            "current-context": "test",
        }
        file.write_text(json.dumps(document))
        return file

    def token_of(self, namespace: str, service_account: str, *, lasts_s: int = 3600) -> str:
        """Return a token of an existing ServiceAccount, requested as the kubelet does."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{service_account}/token"
        request = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"audiences": [], "expirationSeconds": lasts_s},
        }
        answer = self.client().request("post", path, body=request, serializer=lambda _client, data: data)
        return str(answer["status"]["token"])

    # -- life --------------------------------------------------------------------------------------------------------

    def start_etcd(self) -> None:
        peers = f"http://127.0.0.1:{self.etcd_peer_port}"
        self._etcd = self._spawn(
            "etcd",
            f"--data-dir={self.folder / 'etcd'}",
            f"--listen-client-urls={self.etcd_url}",
            f"--advertise-client-urls={self.etcd_url}",
            f"--listen-peer-urls={peers}",
            f"--initial-advertise-peer-urls={peers}",
            f"--initial-cluster=default={peers}",
        )
        self._await(f"{self.etcd_url}/health", self._etcd, "etcd")

    def start_again(self) -> None:
        """Start the API server on the etcd that runs; returns when it is ready."""
        for _ in range(START_ATTEMPTS - 1):
            with suppress(PortTaken):  # an outgoing connection of another process may hold the port for a while
                return self._start_server()
            time.sleep(1.0)
        return self._start_server()

    def _start_server(self) -> None:
        self._server = self._spawn(
            "kube-apiserver",
            f"--etcd-servers={self.etcd_url}",
            "--bind-address=127.0.0.1",
            f"--secure-port={self.port}",
            f"--tls-cert-file={self.certificate}",
            f"--tls-private-key-file={self.key}",
            f"--token-auth-file={self.folder / 'tokens.csv'}",
            "--authorization-mode=RBAC",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={self.folder / 'sa.key'}",
            f"--service-account-signing-key-file={self.folder / 'sa.key'}",
            "--service-cluster-ip-range=10.0.0.0/24",
            "--profiling=false",
            "--v=1",
        )
        self._await(f"{self.url}/readyz", self._server, "kube-apiserver")

    def stop(self, *, kill: bool = False) -> None:
        """End the API server; etcd stays."""
        _end(self._server, kill=kill)
        self._server = None

    def close(self) -> None:
        self.stop(kill=True)
        _end(self._etcd, kill=True)
        self._etcd = None
        for log in self._logs:
            log.close()
        self._logs.clear()

    def _spawn(self, binary: str, *arguments: str) -> "subprocess.Popen[bytes]":
        log = (self.folder / f"{binary}.log").open("ab")
        self._logs.append(log)
        return subprocess.Popen(
            [str(self.assets / binary), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            preexec_fn=_die_with_the_tests if sys.platform == "linux" else None,  # noqa: PLW1509 - one system call
        )

    def _await(self, url: str, process: "subprocess.Popen[bytes]", name: str) -> None:
        context = ssl.create_default_context(cafile=str(self.certificate)) if url.startswith("https") else None
        request = urllib.request.Request(url, headers={"authorization": f"Bearer {self.admin_token}"})
        deadline_s = time.monotonic() + START_WAIT_S
        while time.monotonic() < deadline_s and process.poll() is None:
            with suppress(OSError), urllib.request.urlopen(request, timeout=5, context=context) as answer:
                if answer.status == 200:
                    return
            time.sleep(0.1)
        tail = (self.folder / f"{name}.log").read_text(errors="replace")[-3000:]
        if process.poll() is not None and "address already in use" in tail:
            raise PortTaken(tail)
        raise ServerBroken(f"{name} did not become ready (exit status {process.poll()}):\n{tail}")


def minor_version(client: DynamicClient) -> int:
    """Return the minor version, such as 34 for Kubernetes 1.34."""
    answer = client.request("get", "/version", serializer=lambda _client, data: data)
    return int(answer["minor"].rstrip("+"))


def budget_kind(client: DynamicClient) -> Kind:
    """Return the server's PodDisruptionBudget kind: policy/v1 came with 1.21, policy/v1beta1 ended with 1.25."""
    return BUDGET if minor_version(client) >= 21 else BUDGET_OF_OLD_CLUSTERS


def budgets_path(client: DynamicClient, namespace: str) -> str:
    return f"/apis/{budget_kind(client).api_version}/namespaces/{namespace}/poddisruptionbudgets"


def _die_with_the_tests() -> None:
    """Run in the child: request SIGKILL at the parent thread's end, so that a killed test run leaves no process."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _end(process: "subprocess.Popen[bytes] | None", *, kill: bool) -> None:
    if process is None:
        return
    process.kill() if kill else process.terminate()
    try:
        process.wait(timeout=STOP_WAIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(timeout=STOP_WAIT_S)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def _service_account_key(file: Path) -> None:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    file.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
        )
    )
