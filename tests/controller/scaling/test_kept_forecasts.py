"""Learned forecasts survive a controller restart; an invalid file is reported and counts as empty."""

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from functions.controller.autoscaling import kept
from functions.controller.autoscaling.kept import FORECASTS_MAX_BYTES, KEEP_EVERY_S, MAX_POOLS, Forecasts
from functions.controller.autoscaling.scaler import DECIDE_EVERY_S, Scaler
from functions.decisions.autoscaling.forecast import MOST_AHEAD_BINS, Demand
from functions.decisions.autoscaling.forecast_memory import Memory, StartupTimes
from functions.decisions.autoscaling.forecast_methods import BINS_KEPT, DAY_S, KEPT, METHODS, WEEK_S, Score, Season
from tests.controller.scaling.builders import POOL, report
from tests.controller.scaling.test_scaler import FULL, TWO, decide

LONG = 1.2345678901234567e-100


def looked(minutes: int) -> Scaler:
    """Return a scaler that has observed a busy pool for so many minutes."""
    scaler = Scaler("disk")
    for look in range(int(minutes * 60 / DECIDE_EVERY_S)):
        decide(scaler, report(*TWO, told=FULL), look * DECIDE_EVERY_S)
    return scaler


def largest() -> Memory:
    score = Score(LONG, LONG, (LONG,) * KEPT)
    demand = Demand(
        bins=(LONG,) * BINS_KEPT,
        day=replace(Season(DAY_S), levels=(LONG,) * Season(DAY_S).slots),
        week=replace(Season(WEEK_S), levels=(LONG,) * Season(WEEK_S).slots),
        scores=(score,) * len(METHODS),
        ahead=((10**9, (LONG,) * len(METHODS)),) * MOST_AHEAD_BINS,
        looked_s=1.0,
    )
    return Memory(demand, StartupTimes({"disk": (LONG,) * 20}))


def test_forecast_survives_removal_and_return_of_a_policy() -> None:
    scaler = looked(30)
    before = scaler.memories()
    scaler.step(report(*TWO, told=FULL), [], [], {}, 1800.0)
    assert scaler.memories() == before, "and is kept on disk meanwhile"
    decide(scaler, report(*TWO, told=FULL), 1815.0)
    assert scaler.memories()[POOL].demand.scores[0].came_sum >= before[POOL].demand.scores[0].came_sum > 0.0


def test_forecasts_of_pools_without_a_policy_are_bounded() -> None:
    memories = {f"p{number:03}": Memory(Demand(looked_s=float(number))) for number in range(MAX_POOLS + 9)}
    scaler = Scaler("disk", memories=memories)
    decide(scaler, report(*TWO, told=FULL), 0.0)
    assert len(scaler.memories()) == MAX_POOLS + 1 and "p008" not in scaler.memories()


def written(path: Path) -> dict[str, Any]:
    Forecasts(path).keep(looked(30).memories(), 0.0)
    content = json.loads(path.read_bytes())
    assert isinstance(content, dict)
    return content


def test_restarted_controller_continues_the_forecast(tmp_path: Path) -> None:
    path = tmp_path / "controller" / "forecasts.json"
    before = looked(30)
    Forecasts(path).keep(before.memories(), 0.0)
    after = Scaler("disk", memories=Forecasts(path).known)
    assert after.memories() == before.memories(), "also of a pool that is not heard of yet"
    assert after.memories()[POOL].demand.scores[0].came_sum > 0.0
    now_s = 30 * 60.0
    decide(after, report(*TWO, told=FULL), now_s)
    decide(before, report(*TWO, told=FULL), now_s)
    assert after.memories()[POOL] == before.memories()[POOL]


def test_forecasts_are_written_once_a_minute(tmp_path: Path) -> None:
    path, memories = tmp_path / "forecasts.json", looked(5).memories()
    forecasts = Forecasts(path)
    forecasts.keep(memories, 0.0)
    forecasts.keep({}, KEEP_EVERY_S)
    forecasts.keep({POOL: Memory()}, KEEP_EVERY_S - 0.1)
    assert Forecasts(path).known == memories
    forecasts.keep({POOL: Memory()}, KEEP_EVERY_S)
    assert Forecasts(path).known == {POOL: Memory()}


def test_largest_forecast_fits_its_file(tmp_path: Path) -> None:
    path = tmp_path / "forecasts.json"
    Forecasts(path).keep({f"{number:063d}": largest() for number in range(MAX_POOLS + 1)}, 0.0)
    assert path.stat().st_size < FORECASTS_MAX_BYTES
    known = Forecasts(path).known
    assert len(known) == MAX_POOLS
    assert known[f"{0:063d}"] == largest()


def test_missing_forecast_file_is_empty_without_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert Forecasts(tmp_path / "missing.json").known == {}
    assert not caplog.records


@pytest.mark.parametrize("content", [b"", b"\xff", b"[]", b"{}", b'{"version": 1', b" " * (FORECASTS_MAX_BYTES + 1)])
def test_invalid_forecast_file_is_reported_and_counts_as_empty(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes
) -> None:
    path = tmp_path / "forecasts.json"
    path.write_bytes(content)
    with caplog.at_level(logging.WARNING, kept.__name__):
        assert Forecasts(path).known == {}
    unusable = f"{path}: the stored forecasts are unusable"
    assert [record.getMessage().startswith(unusable) for record in caplog.records] == [True]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("version", 2),
        ("methods", ["last", "smooth"]),
        ("replica_per_s", -1.0),
        ("bins", [1.0] * (BINS_KEPT + 1)),
        ("scores", []),
        ("ahead", [[1, [1.0]]]),
        ("day", {"levels": [1.0] * 7}),
        ("swing_ratio", 7.0),
        ("looked_s", "yesterday"),
        ("starts_s", {"moon": [1.0]}),
    ],
)
def test_impossible_forecast_values_are_ignored(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, key: str, value: object
) -> None:
    path = tmp_path / "forecasts.json"
    content = written(path)
    assert Forecasts(path).known
    (content if key in content else content["pools"][POOL])[key] = value
    path.write_text(json.dumps(content))
    assert Forecasts(path).known == {}
    assert "forecasts start anew" in caplog.text


def test_failed_forecast_write_does_not_stop_the_controller(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    Forecasts(tmp_path / "file" / "forecasts.json").keep({POOL: Memory()}, 0.0)
    assert "forecasts cannot be stored" in caplog.text
