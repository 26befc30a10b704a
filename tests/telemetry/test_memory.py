"""A process warns at its start if its memory limit is lower than its possible need."""

import logging
from pathlib import Path

import pytest

from functions.telemetry.memory import MIB, Part, limit_bytes, warn_if_over

PARTS = [Part("connections", 300 * MIB), Part("the process", 100 * MIB)]


@pytest.mark.parametrize(("limit", "says"), [(None, False), (400 * MIB, False), (399 * MIB, True)])
def test_low_memory_limit_is_reported_with_settings_to_lower(
    caplog: pytest.LogCaptureFixture, limit: int | None, says: bool
) -> None:
    caplog.set_level(logging.WARNING)
    warn_if_over(PARTS, limit)
    said = "".join(record.getMessage() for record in caplog.records)
    assert ("may need 400 MiB, but its memory limit is 399 MiB" in said) is bool(said) is says
    assert ("connections 300, the process 100" in said) is says


@pytest.mark.parametrize(
    ("content", "limit"), [("1073741824\n", 2**30), ("max\n", None), (f"{2**63 - 4096}\n", None), ("", None)]
)
def test_the_limit_of_a_control_group(tmp_path: Path, content: str, limit: int | None) -> None:
    file = tmp_path / "memory.max"
    file.write_text(content)
    assert limit_bytes([tmp_path / "none", file]) == limit
