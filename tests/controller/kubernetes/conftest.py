"""Time limits of this folder's tests, most of which need the real API server (`fixtures`)."""

import os
from pathlib import Path

import pytest

from tests.controller.kubernetes.fixtures import TIMEOUT_S

FOLDER = str(Path(__file__).parent) + os.sep


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A longer limit for the tests of this folder and those below that set none; all of the tests come by here."""
    for item in items:
        if str(item.path).startswith(FOLDER) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))
