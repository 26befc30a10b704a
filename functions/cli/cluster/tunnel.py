"""Port-forward from this machine to a pod, through the cluster's API server.

Each connection becomes one port-forward, like with `kubectl port-forward`. The kubeconfig needs the right to
`pods/portforward`, and the right to read the Secret that the process requires.
"""

import base64
import contextlib
import socket
import threading

from functions.cli.cluster.access import Cluster, ClusterChoice, KubeCluster
from functions.cli.cluster.finding import condition, labels_of, name_of
from functions.cli.refused import CommandRefused
from functions.cli.terminal import make_console
from functions.fleet.role_credentials import tokens_in

_TOKEN_SECRET, _TOKEN_KEY = "shoal-internal-token", "internal-token"
_REGISTRY_PORT = 8080
_TRACES_SECRET, _TRACES_KEY, _TRACES_PORT = "shoal-trace-store", "trace-store-password", 8123
_BLOCK_BYTES = 64 * 1024


class Tunnel:
    """Local port that forwards to a pod's port until it is closed."""

    def __init__(self, cluster: KubeCluster, pod: str, port: int, namespace: str | None = None) -> None:
        """Open the port. `namespace` is the pod's; None means the namespace of the processes."""
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
            except CommandRefused:
                ours.close()  # the client sees a closed connection
                continue
            for source, sink in ((ours, theirs), (theirs, ours)):
                threading.Thread(target=_pump, args=(source, sink), daemon=True).start()


class RegistryTunnel(Tunnel):
    """Tunnel to the registry. `token` is the operator's, or empty."""

    def __init__(self, choice: ClusterChoice, *, with_token: bool) -> None:
        cluster = KubeCluster(choice)
        super().__init__(cluster, ready_pod(cluster, "registry"), _REGISTRY_PORT)
        self.token = read_token(cluster) if with_token else ""


class TracesTunnel(Tunnel):
    """Tunnel to the trace store of components/trace-store. Another store is reached by its address instead."""

    def __init__(self, choice: ClusterChoice) -> None:
        cluster = KubeCluster(choice)
        super().__init__(cluster, ready_pod(cluster, "trace-store"), _TRACES_PORT)
        self.password = _read_secret(cluster, _TRACES_SECRET, _TRACES_KEY)


def ready_pod(cluster: Cluster, process: str) -> str:
    """Return a ready pod of a process. Fail if there is none."""
    system = cluster.choice.system
    pods = cluster.list(f"/api/v1/namespaces/{system}/pods", labelSelector=f"app.kubernetes.io/name={process}")
    ready = [name_of(pod) for pod in pods if labels_of(pod) and condition(pod, "Ready") == "True"]
    if not ready:
        raise CommandRefused(f"no pod of the {process} is ready in {system}: `shoal status --context …` shows why")
    return ready[0]


def read_token(cluster: Cluster) -> str:
    return tokens_in(_read_secret(cluster, _TOKEN_SECRET, _TOKEN_KEY))[0]


def _read_secret(cluster: Cluster, name: str, key: str) -> str:
    secret = cluster.get(f"/api/v1/namespaces/{cluster.choice.system}/secrets/{name}")
    if secret is None or key not in (secret.get("data") or {}):
        raise CommandRefused(f"there is no Secret {name}: `shoal secrets` creates it")
    return base64.b64decode(secret["data"][key]).decode().strip()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    """Copy data until one side ends, then close both."""
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
    told.print(f"it requires the operator's token: {secret} | base64 -d", soft_wrap=True)
    told.print("Ctrl-C ends it")
    try:
        threading.Event().wait()
    finally:
        tunnel.close()
