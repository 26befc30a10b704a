"""A recorded day as a load, backtests of forecasts, and a short run request by request."""

from math import pi, sin
from pathlib import Path

import pytest

from functions.api.expressions import parse_scale_rule
from functions.decisions.autoscaling.policy import ScalePolicy
from functions.simulator.fleet.engine_profile import PROFILES
from functions.simulator.plan.scaler import OwnScaler
from functions.simulator.workload.request import WorkloadRequest
from functions.simulator.workload.synthetic import Traffic as Chats
from functions.simulator.workload.synthetic import synthetic
from studies.scaling.backtest import backtest, servegen_minutes, trace_minutes
from studies.scaling.day import Comparison, Traffic, known
from studies.scaling.fleet_run import FleetDay, FleetRun
from studies.scaling.fluid_pool import Basin
from studies.scaling.jobs import jobs
from studies.scaling.load import BATCH
from studies.scaling.scaler import StaticScaler
from studies.servegen.clients import read_clients
from tests.simulator.recorded_days import write_servegen

PROFILE = PROFILES["l40s-8b"]


def quiet(line: str) -> None:
    assert line


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    write_servegen(tmp_path, "tiny")
    return tmp_path


def test_bursty_client_counts_as_a_job(recording: Path) -> None:
    assert jobs(read_clients(recording, "tiny")) == {"tiny-1"}


def test_a_recorded_day_with_the_day_before_it(recording: Path) -> None:
    traffic = Traffic(directory=recording, pool="tiny", day=1, lessons_days=1, share_ratio=1.0, seconds=7200)
    given = known(traffic, PROFILE, quiet)
    assert given.load.seconds == 7200
    assert given.before is not None
    assert given.before.seconds == 86_400
    assert given.load.later[0].sum() == pytest.approx(0.1 * 7200, rel=0.05)
    assert given.load.soon[0].sum() == pytest.approx(0.35 * 7200, rel=0.1)


def test_a_share_of_the_recorded_rate(recording: Path) -> None:
    def requests(share: float) -> float:
        traffic = Traffic(directory=recording, pool="tiny", day=0, lessons_days=3, share_ratio=share, seconds=7200)
        given = known(traffic, PROFILE, quiet)
        assert given.before is None
        return float(given.load.requests.sum())

    assert requests(4.0) == pytest.approx(4.0 * requests(1.0), rel=0.05)


def test_every_autoscaler_runs_a_recorded_day(recording: Path) -> None:
    traffic = Traffic(directory=recording, pool="tiny", day=0, lessons_days=0, share_ratio=30.0, seconds=3600)
    policy = ScalePolicy(
        min_replicas=1, max_replicas=99, down=(parse_scale_rule("utilization < 70%: -1"),), startup_s=60.0
    )
    comparison = Comparison(basin=Basin(startup_s=60), policy=policy, known=known(traffic, PROFILE, quiet))
    names = ("oracle", "shoal", "reactive", "rules", "static", "hpa", "kpa")
    found = dict(comparison.run(names, quiet))
    assert tuple(found) == names
    assert found["static"].attainment_ratio == 1.0
    assert found["oracle"].replica_s < found["static"].replica_s
    peak = max(found["static"].replicas)
    assert max(found["kpa"].replicas) <= peak + 60  # draining replicas cost on top of the bound


def test_minutes_of_a_recording_as_steps_and_as_lines(recording: Path) -> None:
    steps, lines = (servegen_minutes(recording, "tiny", 1, joint) for joint in ("steps", "lines"))
    assert len(steps) == len(lines) == 1440
    assert steps[0] == steps[9] != steps[10]
    assert lines[4] == pytest.approx((lines[3] + lines[5]) / 2, rel=1e-3)


def test_minutes_of_a_trace_are_counted(tmp_path: Path) -> None:
    rows = [f"2023-11-16 18:{minute:02d}:{second:02d}.0000000,10,5" for minute in (0, 2) for second in (0, 10, 20)]
    path = tmp_path / "azure.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "\n".join([*rows, "2023-11-16 18:03:30,10,5"]) + "\n")
    assert trace_minutes(path) == [3 / 60, 0.0, 3 / 60]


def test_linear_series_is_forecast_by_trend() -> None:
    result = backtest([100.0 + 2.0 * minute for minute in range(300)], 300.0, 60)
    assert result.wape("trend") < result.wape("last") < result.wape("smooth")
    assert result.wape("shoal") == pytest.approx(result.wape("trend"))
    assert result.chosen["trend"] == result.minutes == 240


def test_error_of_last_is_the_growth_within_the_horizon() -> None:
    """A line that grows by 2 a minute is 2 higher one minute ahead and 10 higher five minutes ahead."""
    series = [100.0 + 2.0 * minute for minute in range(200)]
    for horizon_s, off in ((60.0, 2.0), (300.0, 10.0)):
        result = backtest(series, horizon_s, 100)
        assert result.error_sums["last"] / result.minutes == pytest.approx(off)


def test_repeating_day_is_forecast_by_day() -> None:
    sharp = [100.0 + 50.0 * max(-1.0, min(1.0, 8.0 * sin(2 * pi * minute / 1440))) for minute in range(3 * 1440)]
    result = backtest(sharp, 900.0, 2 * 1440)
    assert result.wape("day") < 0.5 * result.wape("last")
    assert result.wape("shoal") <= result.wape("last")
    assert result.figures()["minutes"] == 1440


def test_growing_load_gets_replicas_request_by_request() -> None:
    """The load grows from 1 to 4 requests a second on replicas that serve 1.3 each; starts take 20 s."""

    def growing() -> list[WorkloadRequest]:
        chats = Chats(requests_per_s=4.0, seconds=120.0, turns=1, system_tokens=0, question_tokens=1000, spread=0.1)
        asked = enumerate(synthetic(chats, 1))
        return [row for index, row in asked if row.at_s > 40.0 or index % 4 == 0]

    policy = ScalePolicy(
        min_replicas=2,
        max_replicas=20,
        up=(parse_scale_rule("p99_ttft > 2s: +50%"), parse_scale_rule("queue_seconds > 0.5: +50%")),
        startup_s=20.0,
    )
    day = FleetDay(profile=PROFILE, replicas=2, startup_s=20.0, slo_s=5.0)
    scaled, held = (FleetRun(day, growing(), scaler) for scaler in (OwnScaler(policy, None), StaticScaler(2)))
    grown, stayed = scaled.run(), held.run()
    assert max(grown.replicas) > 2
    assert max(stayed.replicas) == 2
    assert grown.attainment_ratio > stayed.attainment_ratio
    assert grown.asked == stayed.asked > 0
    assert grown.work_s == pytest.approx(stayed.work_s)
    assert scaled.figures()["events"] > 0
    assert BATCH == 2
