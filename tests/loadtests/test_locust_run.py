"""A load profile run by Locust on a fleet: exit code, table of broken thresholds, and workers' figures."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from loadtests.locust.__main__ import arguments
from tests.fleets import PROJECT, Fleet

pytestmark = [pytest.mark.servers, pytest.mark.timeout(400)]


def run(fleet: Fleet, profile: str, folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {
        "OPENAI_BASE_URL": fleet.base_url,
        "SHOAL_API_KEYS": fleet.key("acme"),
        "SSL_CERT_FILE": fleet.ca_file,
    }
    command = [*arguments(profile, folder, ["-u", "5", "-r", "5", "-t", "5s", "--slo-file", "none"]), *more]
    return subprocess.run(
        command, cwd=PROJECT, env=environment, capture_output=True, text=True, timeout=300, check=False
    )


def test_kept_thresholds_end_with_0_and_reports(sim_fleet: Fleet, tmp_path: Path) -> None:
    done = run(
        sim_fleet, "chat", tmp_path, "--slo", "answers_min=5", "--slo", "failures=0", "--slo", "ttft_p99_ms=60000"
    )
    assert done.returncode == 0, done.stderr
    assert "all kept" in done.stderr
    seen = json.loads((tmp_path / "verdict.json").read_text())["entries"]["chat"]
    assert seen["answers"] >= 5 and seen["tokens"] > seen["answers"] and seen["gap_ms"]["p50"] >= 0
    assert {"report_stats.csv", "report.html"} <= {file.name for file in tmp_path.iterdir()}


def test_a_broken_threshold_ends_with_1_and_is_named_with_workers_too(sim_fleet: Fleet, tmp_path: Path) -> None:
    done = run(sim_fleet, "mix", tmp_path, "--processes", "2", "--slo", "ttft_p50_ms=0", "--slo", "answers_min=5")
    assert done.returncode == 1, done.stderr
    assert "broken: ttft_p50_ms\n" in done.stderr
    assert {"chat", "adapters"} & json.loads((tmp_path / "verdict.json").read_text())["entries"].keys()


@pytest.mark.parametrize(("option", "said"), [("ttft=5", "no such threshold"), ("failures=7", "between 0 and 1")])
def test_a_mistake_ends_with_2_before_any_load(sim_fleet: Fleet, tmp_path: Path, option: str, said: str) -> None:
    done = run(sim_fleet, "chat", tmp_path, "--slo", option)
    assert (done.returncode, said in done.stderr) == (2, True), done.stderr
