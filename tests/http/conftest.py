"""Fixtures for all of shoal's servers."""

from pathlib import Path

import pytest

from tests.gateway.certificates import self_signed


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return self_signed(tmp_path_factory.mktemp("tls"))
