"""Kubernetes client for the controller: no retries of its own, no discovery, nothing on disk.

The library's defaults would send a failed request again by themselves, behind the back of the write guard, and keep
what they discovered in a file of the machine's shared temporary folder, which anybody may have written. Both are off
here: `reconcile` retries as a whole, and `api` discovers.
"""

from typing import Any

from kubernetes.client import ApiClient, Configuration
from kubernetes.config import ConfigException, load_incluster_config, load_kube_config
from kubernetes.dynamic import DynamicClient

from functions.controller.kubernetes.run.settings import KubernetesSettings, StartFailed


class _NoDiscovery:
    """Stands where the library puts its discoverer, which would ask and cache at once."""

    def __init__(self, client: Any, cache_file: str | None) -> None:
        self.client = client
        self.cache_file = cache_file


def connect(configuration: Configuration) -> DynamicClient:
    """The client; nothing is sent yet. The configuration's `retries` are set to none."""
    configuration.retries = False
    client: DynamicClient = DynamicClient(ApiClient(configuration), discoverer=_NoDiscovery)  # type: ignore[no-untyped-call]
    return client


def load_configuration(settings: KubernetesSettings) -> Configuration:
    """How to reach the API server; StartFailed where nobody says."""
    configuration = Configuration()
    try:
        if settings.kubeconfig is not None:
            load_kube_config(str(settings.kubeconfig), client_configuration=configuration, persist_config=False)  # type: ignore[no-untyped-call]
        else:
            load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
    except (ConfigException, OSError) as error:
        message = (
            f"no way to the API server: {error}; run in a pod with a ServiceAccount, or set SHOAL_CONTROLLER_KUBECONFIG"
        )
        raise StartFailed(message) from error
    return configuration
