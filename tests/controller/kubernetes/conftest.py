"""Time limits of this folder's tests, most of which need the real API server (`fixtures`)."""

import os
from pathlib import Path

import pytest

from tests.controller.kubernetes.fixtures import TIMEOUT_S

FOLDER = str(Path(__file__).parent) + os.sep


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Set a longer limit for tests of this folder that set none. Pytest passes all collected tests."""
    for item in items:
        if str(item.path).startswith(FOLDER) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))
