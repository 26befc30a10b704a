"""Fleets that several test files share, simulated or with the real engine. Each starts when a test first needs it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.projects import PATIENT, project_with, without_limits
from tests.fleets import Fleet, running_fleet

# Fixtures that several folders share are plugins. If they were imported, each folder would start its own server.
pytest_plugins = [
    "tests.collecting",
    "tests.controller.kubernetes.fixtures",
    "tests.grouping",
    "tests.property_examples",
]


@pytest.fixture(scope="session")
def sim_fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """A fleet of two simulated replicas behind a gateway, started by `shoal up --engine sim`."""
    folder = tmp_path_factory.mktemp("sim")
    project = without_limits(project_with(folder / "project", PATIENT))
    with running_fleet(folder / "state", "sim", project=project, variables={"SHOAL_TRACE_STORE": "chdb"}) as fleet:
        yield fleet


@pytest.fixture(scope="session")
def vllm_fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """A fleet of two real vLLM replicas on CPU, started by `shoal up`, with the prepared base model."""
    with _vllm_fleet(tmp_path_factory.mktemp("vllm"), replicas=2) as fleet:
        yield fleet


@pytest.fixture(scope="session")
def vllm_replica(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """A fleet of one real vLLM replica: half the memory of two, and half a minute less of both cores."""
    with _vllm_fleet(tmp_path_factory.mktemp("vllm"), replicas=1) as fleet:
        yield fleet


@contextmanager
def _vllm_fleet(folder: Path, replicas: int) -> Iterator[Fleet]:
    model_dir = os.environ.get("SHOAL_BASE_MODEL_DIR", "")
    if not model_dir:
        pytest.skip("SHOAL_BASE_MODEL_DIR is not set: `make test` prepares engine and base model, and sets it")
    (folder / "state" / "models").mkdir(parents=True)
    (folder / "state" / "models" / Path(model_dir).name).symlink_to(Path(model_dir).absolute())
    project = without_limits(project_with(folder / "project", PATIENT))
    with running_fleet(folder / "state", "vllm", replicas, project) as fleet:
        yield fleet
