"""Fixtures: the two overlays as kustomize renders them, once per session."""

from pathlib import Path

import pytest

from tests.controller.kubernetes.fixtures import foreign_crds
from tests.manifests.rendering import OVERLAYS, Rendering, render


@pytest.fixture(scope="session")
def staging() -> Rendering:
    return render(OVERLAYS / "staging")


@pytest.fixture(scope="session")
def production() -> Rendering:
    return render(OVERLAYS / "production")


@pytest.fixture(scope="session")
def crds_dir() -> Path:
    return foreign_crds()
