"""`python -m studies scaling`, `scaling-fleet` and `forecast`: tables, figures, and clear errors."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from functions.cli.refused import CommandRefused
from studies.scaling.command import fleet_scaling, forecast, scaling
from tests.simulator.recorded_days import write_servegen

POOLS = ("language_m-large", "language_m-small")


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("traces")
    for pool in POOLS:
        write_servegen(folder / "servegen", pool)
    return folder


def given(traces: Path, **changed: Any) -> dict[str, Any]:
    return {
        "traces_dir": traces,
        "traffic_pool": "language_m-large",
        "day": 0,
        "hours": 1,
        "lessons": 0,
        "share": 1.0,
        "startup_s": 60,
        "slack_s": 1.0,
        "profile": "h100-8b",
        "scale_down": (),
        "scalers": ("shoal",),
        "plot": None,
        "as_json": True,
        **changed,
    }


@pytest.mark.soak
def test_scaling_command_prints_a_table_and_draws_a_plot(traces: Path, tmp_path: Path) -> None:
    picture = tmp_path / "day.svg"
    words = ["scaling", "--day", "1", "--hours", "1", "--scaler", "hpa", "--scaler", "static", "--plot", str(picture)]
    command = [sys.executable, "-m", "studies", *words]
    environment = {**os.environ, "SHOAL_TRACES_DIR": str(traces)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("language_m-large, day 1: ")
    assert [line.split()[0] for line in lines[1:4]] == ["autoscaler", "hpa", "static"]
    assert "Simulating" not in done.stdout, "progress is not part of the answer"
    assert "Replicas paid for" in picture.read_text()


def test_scaling_json_has_every_figure(traces: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scaling(**given(traces))
    answer = json.loads(capsys.readouterr().out)
    assert answer["startup_s"] == 60
    assert set(answer["scalers"]) == {"shoal"}
    assert 0.0 <= answer["scalers"]["shoal"]["attainment_ratio"] <= 1.0


def test_fleet_scaling_simulates_minutes_request_by_request(traces: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = {
        "traces_dir": traces, "traffic_pool": "language_m-large", "day": 0, "from_minute": 5, "minutes": 10,
        "share": 4.0, "startup_s": 30, "slo_s": 5.0, "profile": "h100-8b",
    }  # fmt: skip
    fleet_scaling(**asked, as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert "replica hours, utilization" in lines[0]
    assert [line.split()[0] for line in lines[1:]] == ["band", "interactive", "batch"]
    fleet_scaling(**asked, as_json=True)
    answer = json.loads(capsys.readouterr().out)
    assert answer["scaling"]["attainment_ratio"] == pytest.approx(
        answer["fleet"]["bands"]["interactive"]["goodput_ratio"], abs=1e-4
    )


def test_a_backtest_has_every_series_and_method(traces: Path, capsys: pytest.CaptureFixture[str]) -> None:
    forecast(traces_dir=traces, horizons_s=[300], days=1, as_json=True)
    answer = json.loads(capsys.readouterr().out)
    assert [row["series"] for row in answer] == [f"{pool} {joint}" for pool in POOLS for joint in ("steps", "lines")]
    assert set(answer[0]["wape"]) == {"last", "smooth", "trend", "day", "week", "shoal"}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"scalers": ("magic",)}, "there is no autoscaler 'magic': one of oracle, shoal"),
        ({"profile": "abacus"}, "there is no profile 'abacus'"),
        ({"scale_down": ("utilization < 300%: -1",)}, "never above 100%"),
        ({"plot": Path("day.txt")}, r"ends in \.svg or \.png"),
        ({"traffic_pool": "nothing"}, "the recording cannot be read"),
        ({"day": 5}, "the recording cannot be read: .* has no requests"),
    ],
)
def test_invalid_options_are_refused(traces: Path, changed: dict[str, Any], said: str) -> None:
    with pytest.raises(CommandRefused, match=said):
        scaling(**given(traces, **changed))
