"""The large router table: pieces are stored and continued, and one rule decides which router leads."""

from dataclasses import replace
from math import inf
from pathlib import Path

import msgspec
import pytest

from studies.router_table import runs
from studies.router_table.runs import Capacity, Line, Piece, Plan, ResultsUnusable, Run, Sizes, run_piece
from studies.router_table.summary import Spread, Standing, cells, markdown, standings
from studies.router_table.trials import TRIALS
from studies.routers.simulated import ROUTERS

NOWHERE = Path("nowhere")
SIZES = Sizes(requests=120, seeds=2)
PIECE = Piece(NOWHERE, SIZES, TRIALS["chats"], 0.5, 0, 10.0, tuple(ROUTERS))


@pytest.fixture(scope="module")
def found() -> list[Run]:
    return run_piece(PIECE)


def test_piece_runs_every_router_on_the_same_requests(found: list[Run]) -> None:
    assert [run.router for run in found] == list(ROUTERS)
    assert len({run.asked for run in found}) == 1
    assert all(run.ttft_p50_ms and run.ttft_p99_ms and run.ttft_p50_ms <= run.ttft_p99_ms for run in found)
    assert all(0.0 < run.goodput_ratio <= 1.0 and run.cold_starts == 0 for run in found)


def test_piece_is_reproducible(found: list[Run]) -> None:
    two: tuple[str, ...] = ("shoal", "power-of-two")
    assert run_piece(replace(PIECE, routers=two)) == [run for run in found if run.router in two]


def test_adapter_trial_has_cold_starts() -> None:
    adapters = replace(PIECE, trial=TRIALS["adapters"], routers=("shoal", "round-robin", "dynamo"))
    assert all(run.cold_starts > 0 and run.goodput_ratio > 0.5 for run in run_piece(adapters))


def run(router: str, p99_ms: float | None, good: float, *, seed: int = 0, load: float = 0.8) -> Run:
    return Run("chats", router, load, seed, 100, good, 50.0, p99_ms, 20.0, 0.5, 0, 0.9)


PLAN = Plan(NOWHERE, ("chats",), ("shoal", "dynamo"), (0.8,), Sizes(100, 2))


def write(path: Path, *lines: Line) -> None:
    path.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))


def test_stored_runs_are_not_repeated(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    had = [run("shoal", 1.0, 1.0), run("dynamo", 1.0, 1.0), run("shoal", 1.0, 1.0, seed=1)]
    write(path, PLAN.sizes, Capacity("chats", 0, 20.0), *had)
    pieces = list(runs._pieces(PLAN, {("chats", 0): 10.0, ("chats", 1): 20.0}, {each.key for each in had}))
    assert [(piece.seed, piece.routers, piece.requests_per_s) for piece in pieces] == [(1, ("dynamo",), 16.0)]
    assert runs.read_lines(path, PLAN.sizes)[2:] == had


def test_truncated_last_line_is_skipped_and_a_broken_line_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    write(path, PLAN.sizes, Capacity("chats", 0, 20.0))
    with path.open("ab") as file:
        file.write(msgspec.json.encode(run("shoal", 1.0, 1.0))[:40])
    assert runs.read_lines(path, PLAN.sizes) == [PLAN.sizes, Capacity("chats", 0, 20.0)]
    with path.open("ab") as file:
        file.write(b"\n")
    with pytest.raises(ResultsUnusable, match="line 3"):
        runs.read_lines(path, PLAN.sizes)


def test_other_sizes_are_not_mixed_in(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    write(path, Sizes(100, 3))
    with pytest.raises(ResultsUnusable, match="seeds=3"):
        runs.read_lines(path, PLAN.sizes)


def test_standings_are_against_the_best_other_and_not_the_oracle() -> None:
    lines = [
        run("shoal", 900.0, 0.98), run("dynamo", 1000.0, 0.97), run("llm-d", 1200.0, 0.99), run("oracle", 500.0, 1.0),
    ]  # fmt: skip
    p99, good = standings(cells(lines))
    assert (p99.other, p99.place, round(p99.lead_ratio, 3)) == ("dynamo", "first", 0.1)
    assert (good.other, good.place, round(good.lead_ratio, 4)) == ("llm-d", "behind", -0.0101)


@pytest.mark.parametrize(("ours", "place"), [(989.0, "first"), (995.0, "level"), (1005.0, "level"), (1011.0, "behind")])
def test_within_one_percent_they_are_level(ours: float, place: str) -> None:
    assert Standing("chats", 0.8, "ttft_p99_ms", ours, 1000.0, "dynamo").place == place


def test_router_without_a_p99_is_behind_any_other() -> None:
    lines = [run("shoal", 90_000.0, 0.5), run("dynamo", None, 0.5)]
    p99, good = standings(cells(lines))
    assert (p99.best_other, p99.place, good.place) == (inf, "first", "level")
    assert "never" in markdown(cells(lines), {"chats": [1.0]})


def test_a_spread_is_the_median_with_the_range() -> None:
    assert Spread.from_values([3.0, 1.0, 2.0]) == Spread(2.0, 1.0, 3.0)
    assert Spread.from_values([1.0, None, None]).middle == inf


def test_the_report_has_each_router_of_each_cell() -> None:
    lines = [run(router, 900.0, 0.98, load=load) for load in (0.6, 0.8) for router in ("shoal", "dynamo")]
    report = markdown(cells(lines), {"chats": [20.0, 24.0]})
    assert report.count("\n| 60% | shoal |") == 1
    assert report.count("\n| 80% | dynamo |") == 1
    assert "Capacity 20.0 to 24.0 requests/s" in report
