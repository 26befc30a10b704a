"""A namespace per test on the real API server, and threads that end with the test."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.controller.kubernetes.api_server import ApiServer
from tests.controller.kubernetes.crds import create_crds
from tests.controller.kubernetes.fixtures import Space, make_space
from tests.controller.kubernetes.run.rig import SHOAL_CRDS, Rig, installation

JOIN_S = 60.0


@pytest.fixture
def plain_space(api_server: ApiServer) -> Space:
    """Namespaces on a server that does not need KServe's kinds."""
    return make_space(api_server)


@pytest.fixture
def in_thread() -> Iterator[Callable[[Callable[[], None], Callable[[], None]], None]]:
    """Return `in_thread(run, stop)`, which runs a thread until the test ends."""
    running: list[tuple[threading.Thread, Callable[[], None]]] = []

    def start(run: Callable[[], None], stop: Callable[[], None]) -> None:
        thread = threading.Thread(target=run, daemon=True)
        running.append((thread, stop))
        thread.start()

    yield start
    for _, stop in running:
        stop()
    for thread, _ in running:
        thread.join(JOIN_S)
        assert not thread.is_alive(), "a thread did not end when it was told to"


@pytest.fixture(scope="session")
def shoal_server(kserve_server: ApiServer) -> ApiServer:
    """The session's API server with KServe's InferenceService and all of shoal's kinds."""
    create_crds(kserve_server.client(), *sorted(SHOAL_CRDS.glob("*.yaml")))
    return kserve_server


@pytest.fixture
def rig(shoal_server: ApiServer, tmp_path: Path) -> Iterator[Rig]:
    """Fresh namespaces and a registry; the test starts its own controllers."""
    with installation(make_space(shoal_server), tmp_path) as built:
        yield built
