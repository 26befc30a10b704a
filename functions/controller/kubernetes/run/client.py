"""Kubernetes client for the controller: no retries, no discovery, nothing on disk.

By default the library retries failed requests without the write guard. It also caches its discovery in a file of the
machine's shared temporary folder, which any user may have written. Both are off: `reconcile` retries as a whole, and
`api` discovers kinds.
"""

from typing import Any

from kubernetes.client import ApiClient, Configuration
from kubernetes.config import ConfigException, load_incluster_config, load_kube_config
from kubernetes.dynamic import DynamicClient

from functions.controller.kubernetes.run.settings import ControllerStartFailed, KubernetesSettings


class _NoDiscovery:
    """Replacement for the library's discoverer, which would send requests and cache the answers on creation."""

    def __init__(self, client: Any, cache_file: str | None) -> None:
        self.client = client
        self.cache_file = cache_file


def connect(configuration: Configuration) -> DynamicClient:
    """Return the client; nothing is sent yet. The configuration's `retries` are set to none."""
    configuration.retries = False
    client: DynamicClient = DynamicClient(ApiClient(configuration), discoverer=_NoDiscovery)  # type: ignore[no-untyped-call]
    return client


def load_configuration(settings: KubernetesSettings) -> Configuration:
    """Load how to reach the API server. Raises ControllerStartFailed if that is not configured."""
    configuration = Configuration()
    try:
        if settings.kubeconfig is not None:
            load_kube_config(str(settings.kubeconfig), client_configuration=configuration, persist_config=False)  # type: ignore[no-untyped-call]
        else:
            load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
    except (ConfigException, OSError) as error:
        message = (
            f"the API server's address is unknown: {error}; run in a pod with a ServiceAccount, or set "
            "SHOAL_CONTROLLER_KUBECONFIG"
        )
        raise ControllerStartFailed(message) from error
    return configuration
