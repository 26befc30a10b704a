"""A way to a process of a cluster, through its API server: a port of this machine that leads to a pod's.

Each connection to the port becomes one port-forward of the API server's, as `kubectl port-forward` makes them, so that
a kubeconfig is all that is needed: the right to `pods/portforward`, and to read the Secret that the process asks for.
"""

import base64
import contextlib
import socket
import threading

from functions.cli.cluster.access import Cluster, ClusterChoice, KubeCluster
from functions.cli.cluster.finding import condition, labels_of, name_of
from functions.cli.refused import Refused
from functions.cli.terminal import make_console
from functions.fleet.role_credentials import tokens_in

_TOKEN_SECRET, _TOKEN_KEY = "shoal-internal-token", "internal-token"
_REGISTRY_PORT = 8080
_TRACES_SECRET, _TRACES_KEY, _TRACES_PORT = "shoal-trace-store", "trace-store-password", 8123
_BLOCK_BYTES = 64 * 1024


class Tunnel:
    """Open until closed; `url` answers as the pod does at that port."""

    def __init__(self, cluster: KubeCluster, pod: str, port: int, namespace: str | None = None) -> None:
        """`namespace`: of the pod; None: the processes' own."""
        self._cluster = cluster
        self._namespace = namespace or cluster.choice.system
        self._pod = pod
        self._port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._accept, name="tunnel", daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                ours, _ = self._listener.accept()
            except OSError:
                return  # closed
            try:
                theirs = self._cluster.forwarded(self._namespace, self._pod, self._port)
            except Refused:
                ours.close()  # the caller is told that nobody answers
                continue
            for source, sink in ((ours, theirs), (theirs, ours)):
                threading.Thread(target=_pump, args=(source, sink), daemon=True).start()


class RegistryTunnel(Tunnel):
    """`token` is the operator's."""

    def __init__(self, choice: ClusterChoice, *, with_token: bool) -> None:
        cluster = KubeCluster(choice)
        super().__init__(cluster, ready_pod(cluster, "registry"), _REGISTRY_PORT)
        self.token = read_token(cluster) if with_token else ""


class TracesTunnel(Tunnel):
    """To the trace store of components/trace-store; an installation with another one names its address."""

    def __init__(self, choice: ClusterChoice) -> None:
        cluster = KubeCluster(choice)
        super().__init__(cluster, ready_pod(cluster, "trace-store"), _TRACES_PORT)
        self.password = _read_secret(cluster, _TRACES_SECRET, _TRACES_KEY)


def ready_pod(cluster: Cluster, process: str) -> str:
    """A ready pod of that process's; Refused where there is none."""
    system = cluster.choice.system
    pods = cluster.list(f"/api/v1/namespaces/{system}/pods", labelSelector=f"app.kubernetes.io/name={process}")
    ready = [name_of(pod) for pod in pods if labels_of(pod) and condition(pod, "Ready") == "True"]
    if not ready:
        raise Refused(f"no pod of the {process} is ready in {system}: `shoal status --context …` says why")
    return ready[0]


def read_token(cluster: Cluster) -> str:
    return tokens_in(_read_secret(cluster, _TOKEN_SECRET, _TOKEN_KEY))[0]


def _read_secret(cluster: Cluster, name: str, key: str) -> str:
    secret = cluster.get(f"/api/v1/namespaces/{cluster.choice.system}/secrets/{name}")
    if secret is None or key not in (secret.get("data") or {}):
        raise Refused(f"there is no Secret {name}: `shoal secrets` makes it")
    return base64.b64decode(secret["data"][key]).decode().strip()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    """Until one side ends; then both do."""
    with contextlib.suppress(OSError):
        while block := source.recv(_BLOCK_BYTES):
            sink.sendall(block)
    for end in (source, sink):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
        end.close()


def console(choice: ClusterChoice) -> None:
    tunnel = RegistryTunnel(choice, with_token=False)
    secret = f"kubectl -n {choice.system} get secret shoal-internal-token -o jsonpath='{{.data.internal-token}}'"
    told = make_console()
    told.print(f"{tunnel.url}/console", soft_wrap=True)
    told.print(f"it asks for the operator's token: {secret} | base64 -d", soft_wrap=True)
    told.print("ctrl-c ends it")
    try:
        threading.Event().wait()
    finally:
        tunnel.close()
