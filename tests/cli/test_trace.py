"""`shoal trace` and `shoal simulate cascade`, on files as a gateway writes them."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from functions.cli.refused import CommandRefused
from functions.cli.simulate_tables import cascade
from functions.cli.trace import show, trace
from functions.telemetry.trace_files import TraceFiles
from functions.telemetry.trace_parts import parts as parts_of
from functions.telemetry.trace_row import TraceRow, encode
from tests.telemetry.test_traces import row


def written(directory: Path, *some: TraceRow) -> Path:
    files = TraceFiles(directory, file_bytes=1 << 20, max_bytes=1 << 24)
    files.write([encode(one) for one in some], 1.0)
    files.close()
    return directory


def shown(some: TraceRow) -> str:
    console = Console(file=io.StringIO(), width=120, highlight=False)
    show(some, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_parts_of_a_request_make_up_its_time() -> None:
    parts = parts_of(row())
    assert [part.name for part in parts] == ["auth", "queue", "route", "connect", "prefill", "decode"]
    assert sum(part.ms for part in parts) == pytest.approx(240.0)
    assert [part.start_ms for part in parts] == [0.0, 1.0, 1.0, 2.0, 4.0, 40.0]


def test_what_a_request_never_came_to_is_not_shown() -> None:
    refused = row(route_ms=None, connect_ms=None, prefill_ms=None, first_token_ms=None, total_ms=9.0, replica_id="")
    assert [(part.name, part.ms) for part in parts_of(refused)] == [("auth", 1.0), ("queue", 0.0), ("other", 8.0)]
    assert "none (1 attempt)" in shown(refused)


def test_the_waterfall_and_the_decision_are_shown() -> None:
    text = shown(row(degraded_from="acme/big@v1", error="x [/] y"))
    for part in ("prefill", "36.0", "least_predicted_wait", "predicted_ms", "instead of acme/big@v1", "x [/] y"):
        assert part in text
    assert "━" in text


def test_a_request_without_duration_breaks_no_picture() -> None:
    assert "total" in shown(row(total_ms=0.0, first_token_ms=0.0, prefill_ms=0.0))


def test_as_json_it_is_the_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace("r-1", written(tmp_path, row("r-0"), row()), as_json=True)
    document = json.loads(capsys.readouterr().out)
    assert (document["request_id"], document["class"]) == ("r-1", "interactive")


def test_a_request_that_left_no_trace(tmp_path: Path) -> None:
    with pytest.raises(CommandRefused, match="no trace of r-9"):
        trace("r-9", written(tmp_path, row()), as_json=False)


def judged(doubt_nats: float | None) -> TraceRow:
    return row(route_score={"cascade": {"from": "small", "to": "large", "doubt_nats": doubt_nats}})


def test_a_threshold_is_evaluated_from_what_was_recorded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    some = [judged(number / 10) for number in range(10)] + [judged(None), row()]
    cascade(written(tmp_path, *some), [0.45, 0.85], as_json=True)
    (found,) = json.loads(capsys.readouterr().out)
    assert (found["from"], found["to"], found["answers"]) == ("small", "large", 10)
    assert [(one["threshold_nats"], one["escalated"]) for one in found["rows"]] == [(0.45, 5), (0.85, 1)]
    cascade(tmp_path, [], as_json=False)
    assert "small to large: 10 answers judged" in capsys.readouterr().out


def test_traces_without_cascades_say_so(tmp_path: Path) -> None:
    with pytest.raises(CommandRefused, match="no answer in"):
        cascade(written(tmp_path, row()), [], as_json=False)
    with pytest.raises(CommandRefused, match="there is no"):
        cascade(tmp_path / "nothing", [], as_json=False)


@pytest.mark.parametrize("threshold", [float("nan"), float("inf"), -0.5])
def test_what_is_no_threshold_is_refused(tmp_path: Path, threshold: float) -> None:
    with pytest.raises(CommandRefused, match="is not a threshold"):
        cascade(written(tmp_path, row()), [threshold], as_json=False)


def test_a_directory_that_is_not_there_is_told_from_a_request_that_is_not(tmp_path: Path) -> None:
    with pytest.raises(CommandRefused, match="there is no directory"):
        trace("r-1", tmp_path / "elsewhere", as_json=False)
