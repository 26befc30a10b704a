"""Access to a cluster's API server by a kubeconfig: read, create, replace and patch.

The kubeconfig is the same as kubectl's: KUBECONFIG, else ~/.kube/config, with the named or the current context.
`Forbidden` distinguishes objects that may not be read from objects that do not exist.
"""

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from functions.cli.refused import CommandRefused

Body = dict[str, Any]
SYSTEM, MODELS = "shoal", "shoal-models"
CURRENT = "-"  # the kubeconfig's own choice of context
_TIMEOUT_S = 20.0
_PAGE_ITEMS = 500
_MAX_PAGES = 200
_MERGE_PATCH = "application/merge-patch+json"


@dataclass(frozen=True, slots=True)
class ClusterChoice:
    """A cluster and the installation's namespaces in it."""

    context: str | None = None  # context of the kubeconfig; None or -: the current one
    system: str = SYSTEM
    models: str = MODELS


class Forbidden(CommandRefused):
    """The credentials do not permit the request."""


class ServerBusy(CommandRefused):
    """The server answered 429: a disruption budget or its own load prevents the request now. A retry may succeed."""


class Cluster(Protocol):
    """Operations on a cluster that commands need."""

    choice: ClusterChoice

    def get(self, path: str, **params: str) -> Body | None:
        """Return one object or document by its URL path, or None if it does not exist. Raise Forbidden if it may not be
        read."""

    def list(self, path: str, **params: str) -> Iterator[Body]:
        """Yield a collection's items; none if the server does not know the kind. Raise Forbidden if it may not be
        read."""

    def text(self, path: str, **params: str) -> str | None:
        """Return a document that is not JSON as text, or None if it does not exist. Raise Forbidden if it may not be
        read."""

    def create(self, path: str, body: Body) -> None:
        """Create an object with POST to its collection's path. Fail if it exists, or if its namespace does not."""

    def replace(self, path: str, body: Body) -> None:
        """Replace an object with PUT. Fail if it does not exist."""

    def patch(self, path: str, body: Body) -> Body:
        """Merge the fields of `body` into an object and return the object. Fail if it does not exist."""


class KubeCluster:
    """A cluster through the Kubernetes client library, which handles certificates, tokens and exec plugins."""

    def __init__(self, choice: ClusterChoice) -> None:
        from kubernetes import config  # takes 0.4 s, and only these commands need it
        from kubernetes.client import ApiClient, Configuration
        from kubernetes.config import ConfigException
        from kubernetes.dynamic import DynamicClient

        self.choice = choice
        file = os.environ.get("KUBECONFIG") or "~/.kube/config"  # the library would read it only at its import
        configuration, context = Configuration(), None if choice.context == CURRENT else choice.context
        try:
            config.load_kube_config(file, context, configuration, persist_config=False)  # type: ignore[no-untyped-call]
        except (ConfigException, OSError) as error:
            reason = str(error).rstrip(".")
            raise CommandRefused(
                f"the cluster cannot be reached: {reason}; set KUBECONFIG, or name a context with --context"
            ) from error
        configuration.retries = False
        self._configuration = configuration
        self.server = str(configuration.host)
        self._client: Any = DynamicClient(ApiClient(configuration), discoverer=_NoDiscovery)  # type: ignore[no-untyped-call]

    def get(self, path: str, **params: str) -> Body | None:
        answer = self._request("GET", path, params)
        return None if answer is None else dict(json.loads(answer))

    def list(self, path: str, **params: str) -> Iterator[Body]:
        more = ""
        for _ in range(_MAX_PAGES):
            page = self.get(path, limit=str(_PAGE_ITEMS), **params, **({"continue": more} if more else {}))
            if page is None:
                return
            yield from page.get("items") or ()
            more = page["metadata"].get("continue") or ""
            if not more:
                return

    def text(self, path: str, **params: str) -> str | None:
        answer = self._request("GET", path, params)
        return None if answer is None else answer.decode(errors="replace")

    def create(self, path: str, body: Body) -> None:
        if self._request("POST", path, {}, body) is None:
            raise CommandRefused(f"{path} does not exist; does the namespace?")

    def replace(self, path: str, body: Body) -> None:
        if self._request("PUT", path, {}, body) is None:
            raise CommandRefused(f"{path} does not exist")

    def patch(self, path: str, body: Body) -> Body:
        answer = self._request("PATCH", path, {}, body, _MERGE_PATCH)
        if answer is None:
            raise CommandRefused(f"{path} does not exist")
        return dict(json.loads(answer))

    def forwarded(self, namespace: str, pod: str, port: int) -> Any:
        """Return a socket that is connected to a pod's port. Fail if the server refuses the port-forward."""
        from kubernetes.client import ApiClient, CoreV1Api
        from kubernetes.client.exceptions import ApiException
        from kubernetes.stream import portforward

        # A separate client, because the library replaces the request function of the client that it gets.
        core = CoreV1Api(ApiClient(self._configuration))
        try:
            forward: Any = portforward(core.connect_get_namespaced_pod_portforward, pod, namespace, ports=str(port))
        except (ApiException, OSError) as error:
            raise CommandRefused(f"no port-forward to {namespace}/{pod}: {error}") from error
        return forward.socket(port)

    def _request(
        self,
        method: str,
        path: str,
        params: Mapping[str, str],
        body: Body | None = None,
        content_type: str = "application/json",
    ) -> bytes | None:
        from kubernetes.client.exceptions import ApiException
        from urllib3.exceptions import HTTPError

        try:
            response = self._client.request(
                method,
                path,
                body=body,
                query_params=list(params.items()),
                content_type=content_type,
                serialize=False,
                _request_timeout=_TIMEOUT_S,
            )
        except ApiException as error:
            if error.status == 404:
                return None
            if error.status in (401, 403):
                raise Forbidden(f"{method} {path}: {_said(error.body)}") from error
            if error.status == 429:
                raise ServerBusy(_said(error.body)) from error
            raise CommandRefused(f"{method} {path}: {error.status} {_said(error.body)}") from error
        except (HTTPError, OSError) as error:
            raise CommandRefused(f"{self.server} does not answer: {error}") from error
        return bytes(response.data)


class _NoDiscovery:
    """Discoverer that does nothing, because all paths are known."""

    def __init__(self, *_: object) -> None:
        return


def _said(body: object) -> str:
    try:
        told = json.loads(body) if isinstance(body, (str, bytes)) else {}
        return str(told["message"])
    except (ValueError, KeyError, TypeError):
        return str(body)[:300]
