"""Rules as promtool reads them: every alert fires on its series, clears after them, and is quiet on a healthy fleet."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from functions.telemetry.alerting import RULES_FILE, alerts
from tests.telemetry.alert_series import FAILING, written


def promtool(*arguments: str) -> str:
    tool = shutil.which("promtool")
    if tool is None:
        pytest.skip("promtool is not installed: apt-get install prometheus")
    done = subprocess.run([tool, *arguments], capture_output=True, text=True, check=False, timeout=120)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def test_promtool_finds_nothing_wrong_with_the_rules() -> None:
    assert promtool("check", "rules", str(RULES_FILE)) == ""


def test_every_alert_has_its_series() -> None:
    assert sorted(alert.name for alert in alerts()) == sorted(FAILING)


def test_each_alert_fires_and_clears_and_a_healthy_fleet_has_none(tmp_path: Path) -> None:
    assert promtool("test", "rules", *written(tmp_path)) == ""


def test_removed_replica_does_not_lag(tmp_path: Path) -> None:
    """The last sample stays valid for five minutes if no staleness marker was written, as around a reload."""
    series = {
        'shoal_snapshot_epoch{job="shoal-registry"}': "53x8 56x60",
        'shoal_snapshot_epoch{job="shoal-agent"}': "53x8 _x60",
    }
    fires = 'count(ALERTS{alertname="VersionDrift"}) > bool 0'
    test = {
        "interval": "15s",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [
            {"expr": fires, "eval_time": f"{minutes}m", "exp_samples": []} for minutes in (4, 5, 6, 7, 8)
        ],
    }
    file = tmp_path / "gone.yaml"
    file.write_text(json.dumps({"rule_files": [str(RULES_FILE)], "evaluation_interval": "15s", "tests": [test]}))
    assert promtool("test", "rules", str(file)) == ""
