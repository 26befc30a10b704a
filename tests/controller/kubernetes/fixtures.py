"""Fixtures around the real API server, a plugin of all tests (tests/conftest.py).

One server serves a whole test session: each test gets namespaces of its own (`space`), since without a controller
manager no namespace can be deleted. A test that stops the server starts it again before it ends.
"""

import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from kubernetes.dynamic import DynamicClient

from tests.controller.kubernetes.api_server import ApiServer
from tests.controller.kubernetes.crds import INFERENCE_SERVICE, create_crds

TIMEOUT_S = 600  # the first test of a session starts the servers and loads a CRD of 2 MB, perhaps on a busy machine
_numbers = itertools.count(1)


def kube_assets() -> Path:
    """Return the folder with etcd and kube-apiserver; skip the test if there is none."""
    folder = os.environ.get("KUBEBUILDER_ASSETS", "")
    if not folder:
        pytest.skip(
            "KUBEBUILDER_ASSETS is not set: it names a folder with etcd and kube-apiserver; "
            "`setup-envtest use -p path` makes one"
        )
    return Path(folder)


def foreign_crds() -> Path:
    """Return the folder with KServe's and Knative's CRDs; skip the test if there is none."""
    folder = os.environ.get("SHOAL_CRDS_DIR", "")
    if not folder:
        pytest.skip(
            "SHOAL_CRDS_DIR is not set: it names a folder with KServe's CRDs as files such as "
            f"{INFERENCE_SERVICE} (config/crd/full/ of KServe's repository)"
        )
    return Path(folder)


@dataclass(frozen=True)
class Space:
    """Namespaces of one test."""

    server: ApiServer
    system: str  # in production: shoal
    models: str  # in production: shoal-models

    @property
    def client(self) -> DynamicClient:
        return self.server.client()


@pytest.fixture(scope="session")
def api_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """The session's API server, without CRDs."""
    server = ApiServer.start(tmp_path_factory.mktemp("kubernetes"), kube_assets())
    yield server
    server.close()


@pytest.fixture(scope="session")
def kserve_server(api_server: ApiServer) -> ApiServer:
    """The session's API server, with KServe's InferenceService."""
    create_crds(api_server.client(), foreign_crds() / INFERENCE_SERVICE)
    return api_server


@pytest.fixture
def space(kserve_server: ApiServer) -> Space:
    """Fresh namespaces on the server that knows InferenceServices."""
    return make_space(kserve_server)


def make_space(server: ApiServer) -> Space:
    number = next(_numbers)
    space = Space(server, f"shoal-{number}", f"shoal-models-{number}")
    for name in (space.system, space.models):
        create(
            space.client, "/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        )
    return space


def create(client: DynamicClient, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """POST the object as another party than the controller."""
    answer: dict[str, Any] = client.request("post", path, body=body, serializer=lambda _client, data: data)
    return answer
