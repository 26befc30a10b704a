"""Alerts on series recorded from drills: with the shipped rules each fires and clears when it did on the fleet."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from functions.cli.drill.command import DRILLS
from tests.telemetry.recorded_series import FOLDER, MAX_BYTES, written

RECORDINGS = sorted(FOLDER.glob("*.json"))


def read(file: Path) -> dict[str, Any]:
    recording: dict[str, Any] = json.loads(file.read_text())
    return recording


def complaints(files: list[str]) -> str:
    tool = shutil.which("promtool")
    if tool is None:
        pytest.skip("promtool is not installed: apt-get install prometheus")
    done = subprocess.run([tool, "test", "rules", *files], capture_output=True, text=True, check=False, timeout=240)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def test_each_drill_is_recorded_with_its_own_alert_and_briefly() -> None:
    alerts = {drill.name: drill.alert for drill in DRILLS}
    assert {file.stem: read(file)["alert"] for file in RECORDINGS} == alerts
    assert [file.name for file in RECORDINGS if file.stat().st_size > MAX_BYTES] == []


def test_each_alert_fires_and_clears_on_what_its_drill_recorded(tmp_path: Path) -> None:
    assert complaints([written(tmp_path, read(file)) for file in RECORDINGS]) == ""


def test_missing_alert_in_a_recording_fails(tmp_path: Path) -> None:
    """If the series show no failure although one was injected, the recording's test must fail."""
    recording = read(FOLDER / "bus-away.json")
    healthy = dict.fromkeys(recording["series"], "1x400")
    assert "FAILED" in complaints([written(tmp_path, recording | {"series": healthy})])
