"""Stages of a cold start, measured by the agent's clock, the engine's metrics and the engine's log."""

import asyncio
import time
from pathlib import Path

import pytest

from functions.engines.metrics import parse_metrics
from functions.replica.cold_start import ColdStart, LogTimes, compute_stages, parse_log
from tests.replica.statuses import EMPTY_PAGE

BEGAN = time.mktime((2026, 11, 23, 15, 30, 0, 0, 0, -1))


def line(after_s: float, text: str, who: str = "Worker pid=30243") -> str:
    return f"({who}) INFO {time.strftime('%m-%d %H:%M:%S', time.localtime(BEGAN + after_s))} [a_runner.py:68] {text}"


REAL = (
    line(51, "non-default args: {'port': 20020}", "APIServer pid=27200"),
    line(80, "Starting to load model /models/smollm2-135m..."),
    line(83, "Loading weights took 1.91 seconds"),
    line(130, "torch.compile took 45.10 s in total", "Worker_TP0 pid=1"),
    line(131, "torch.compile took 46.20 s in total", "Worker_TP1 pid=2"),
    line(156, "Graph capturing finished in 24 secs, took 0.60 GiB"),
)


def test_worked_example_of_stages() -> None:
    log = LogTimes(76.0, {"weights": 2.5, "compile": 45.0, "graphs": 24.0})
    found = compute_stages(0.0, 168.0, log)
    assert found == {"imports": 76.0, "weights": 2.5, "compile": 45.0, "graphs": 24.0, "setup": 20.5}


def test_lines_as_vllm_writes_them() -> None:
    found = parse_log(REAL, BEGAN, BEGAN + 200)
    assert found == LogTimes(BEGAN + 80, {"weights": 1.91, "compile": 46.20, "graphs": 24.0})


def test_on_cpu_compilation_is_from_one_line_to_another() -> None:
    """vLLM logs no duration on CPU. The end line of another process does not count."""
    began = line(90, "Warming up model for the compilation...")
    ended = line(140, "Warming up done.")
    other = line(95, "Warming up done.", "Worker pid=1")
    assert parse_log([began, other, ended], BEGAN, BEGAN + 200).took_s == {"compile": 50.0}
    assert parse_log([other, ended], BEGAN, BEGAN + 200).took_s == {}


def test_an_earlier_process_of_the_same_log_does_not_count() -> None:
    earlier = [line(-3600, "Starting to load model x..."), line(-3590, "Loading weights took 99.00 seconds")]
    assert parse_log([*earlier, *REAL], BEGAN, BEGAN + 200) == parse_log(REAL, BEGAN, BEGAN + 200)
    assert parse_log(earlier, BEGAN, BEGAN + 200) == LogTimes(None, {})


@pytest.mark.parametrize(
    "text",
    [
        "Loading weights took 99999999999.0 seconds",
        "a prompt says: Loading weights took 5.00 seconds",
        "Graph capturing finished in -5 secs",
        "\x00\x1b[31mtorch.compile took NaN s in total",
    ],
)
def test_other_log_lines_are_ignored(text: str) -> None:
    assert parse_log([line(10, text)], BEGAN, BEGAN + 200).took_s == {}


def test_stages_are_no_longer_than_the_whole() -> None:
    found = compute_stages(0.0, 10.0, LogTimes(4.0, {"weights": 90_000.0, "compile": 3.0}))
    assert found == {"imports": 4.0, "weights": 6.0, "compile": 0.0, "setup": 0.0}


class Clock:
    now_s = BEGAN

    def __call__(self) -> float:
        return self.now_s


@pytest.mark.parametrize("has_log", [True, False])
async def test_a_whole_start(tmp_path: Path, has_log: bool) -> None:
    clock, file = Clock(), tmp_path / "engine.log"
    if has_log:
        file.write_text("\n".join(REAL))
    start = ColdStart(file, clock)
    clock.now_s = BEGAN + 168
    start.record_listening(BEGAN - 2)  # the agent was two seconds late
    clock.now_s = BEGAN + 170
    start.record_listening(None)
    start.record_first_answer()
    clock.now_s = BEGAN + 175
    stages = await start.stages()
    assert (stages["first_answer"], stages["warm_up"], sum(stages.values())) == (2.0, 5.0, pytest.approx(177.0))
    assert stages["setup"] == pytest.approx(170 - 82 - 1.91 - 46.2 - 24 if has_log else 170)


def test_a_clock_that_jumps_measures_nothing() -> None:
    clock = Clock()
    start = ColdStart(None, clock)
    start.record_listening(None)
    clock.now_s -= 3600
    start.record_first_answer()
    assert asyncio.run(start.stages()) == {}


def test_the_process_start_is_read_from_the_engine_s_page() -> None:
    assert parse_metrics(EMPTY_PAGE).process_began_unix_s is None
    assert parse_metrics(EMPTY_PAGE + "process_start_time_seconds 1.7e9\n").process_began_unix_s == 1.7e9
