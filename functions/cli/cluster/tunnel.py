"""A way to the registry of a cluster, through its API server: a port of this machine that leads to a pod's.

Each connection to the port becomes one port-forward of the API server's, as `kubectl port-forward` makes them, so that
a kubeconfig is all that is needed: the right to `pods/portforward`, and to read the Secret with the internal token.
"""

import base64
import contextlib
import socket
import threading

from functions.cli.cluster.access import Cluster, ClusterChoice, KubeCluster
from functions.cli.cluster.finding import condition, labels_of, name_of
from functions.cli.refused import Refused
from functions.fleet.role_credentials import tokens_in

_TOKEN_SECRET, _TOKEN_KEY = "shoal-internal-token", "internal-token"
_REGISTRY_PORT = 8080
_BLOCK_BYTES = 64 * 1024


class RegistryTunnel:
    """Open until closed. `token` is the operator's; `url` answers as the registry."""

    def __init__(self, choice: ClusterChoice, *, with_token: bool) -> None:
        self._cluster = KubeCluster(choice)
        self._pod = registry_pod(self._cluster)
        self.token = read_token(self._cluster) if with_token else ""
        self._listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._accept, name="registry tunnel", daemon=True).start()

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
                theirs = self._cluster.forwarded(self._cluster.choice.system, self._pod, _REGISTRY_PORT)
            except Refused:
                ours.close()  # the caller is told that nobody answers
                continue
            for source, sink in ((ours, theirs), (theirs, ours)):
                threading.Thread(target=_pump, args=(source, sink), daemon=True).start()


def registry_pod(cluster: Cluster) -> str:
    """A ready pod of the registry's; Refused where there is none."""
    system = cluster.choice.system
    pods = cluster.list(f"/api/v1/namespaces/{system}/pods", labelSelector="app.kubernetes.io/name=registry")
    ready = [name_of(pod) for pod in pods if labels_of(pod) and condition(pod, "Ready") == "True"]
    if not ready:
        raise Refused(f"no pod of the registry is ready in {system}: `shoal status --context …` says why")
    return ready[0]


def read_token(cluster: Cluster) -> str:
    path = f"/api/v1/namespaces/{cluster.choice.system}/secrets/{_TOKEN_SECRET}"
    secret = cluster.get(path)
    if secret is None or _TOKEN_KEY not in (secret.get("data") or {}):
        raise Refused(f"there is no Secret {_TOKEN_SECRET}: `shoal secrets` makes it")
    return tokens_in(base64.b64decode(secret["data"][_TOKEN_KEY]).decode())[0]


def _pump(source: socket.socket, sink: socket.socket) -> None:
    """Until one side ends; then both do."""
    with contextlib.suppress(OSError):
        while block := source.recv(_BLOCK_BYTES):
            sink.sendall(block)
    for end in (source, sink):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
        end.close()
