"""Kubernetes client for the controller: no retries of its own, no discovery, nothing on disk.

The library's defaults would send a failed request again by themselves, behind the back of the write guard, and keep
what they discovered in a file of the machine's shared temporary folder, which anybody may have written. Both are off
here: `reconcile` retries as a whole, and `api` discovers.
"""

from typing import Any

from kubernetes.client import ApiClient, Configuration
from kubernetes.dynamic import DynamicClient


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
