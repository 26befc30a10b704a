"""Time limits of this folder's tests, most of which need the real API server (`fixtures`)."""

from pathlib import Path

import pytest

from tests.controller.kubernetes.fixtures import TIMEOUT_S


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A longer limit for the tests of this folder and those below that set none."""
    for item in items:
        if Path(__file__).parent in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))
