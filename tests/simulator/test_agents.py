"""Agent runs: which call waits for which, pauses, shared prompts, and later requests on a slow fleet."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from functions.simulator.workload.agents import BLOCK_TOKENS, AgentRuns, read_runs
from functions.simulator.workload.request import WorkloadRequest
from functions.simulator.workload.trace_text import TraceUnreadable
from functions.simulator.workload.traces import block_tokens_of, read_trace

SYSTEM = "You answer. " * 20


def span(name: str, start_s: int, end_s: int, said: list[str], *, parent: str | None = None) -> dict[str, Any]:
    messages = [{"role": "system", "content": SYSTEM}, *({"role": "user", "content": text} for text in said)]
    return {
        "trace_id": "t", "span_id": name, "parent_span_id": parent,
        "start_time": f"2026-01-01T10:00:{start_s:02d}", "end_time": f"2026-01-01T10:00:{end_s:02d}",
        "attributes": {"gen_ai.input.messages": json.dumps(messages), "gen_ai.output.text": "o" * 40},
    }  # fmt: skip


FAN_IN = [
    span("question", 0, 2, ["a" * 400]),
    span("left", 3, 5, ["b" * 400]),
    span("right", 4, 9, ["c" * 400]),
    span("summary", 10, 12, ["a" * 400, "d" * 4000]),
]


def write(path: Path, spans: list[dict[str, Any]]) -> Path:
    path.write_text(json.dumps({"trace_id": "t", "spans": spans}))
    return path


def test_a_fan_in_waits_for_all_its_branches(tmp_path: Path) -> None:
    [first] = read_trace(write(tmp_path / "run.json", FAN_IN))
    assert first.at_s == 0.0
    assert first.then is not None
    left, right = first.then(50.0)  # much slower than recorded
    assert [left.at_s, right.at_s] == [51.0, 52.0]
    assert left.then is not None
    assert right.then is not None
    assert list(right.then(60.0)) == []
    [summary] = left.then(70.0)
    assert summary.at_s == 71.0
    assert summary.then is None
    assert len({asked.session for asked in (first, left, right, summary)}) == 1


def test_parent_span_takes_precedence_over_spans_that_ended_before(tmp_path: Path) -> None:
    spans = [span("a", 0, 2, ["x"]), span("b", 1, 3, ["x"]), span("c", 5, 6, ["x"], parent="a")]
    [run] = read_runs(write(tmp_path / "run.json", spans))
    assert [call.follows for call in run] == [(), (), (0,)]
    assert run[2].pause_s == 3.0


def test_tool_calls_are_pauses(tmp_path: Path) -> None:
    tool = span("tool", 2, 3, []) | {"attributes": {"gen_ai.operation.name": "execute_tool"}}
    [run] = read_runs(write(tmp_path / "run.json", [FAN_IN[0], tool, FAN_IN[1]]))
    assert [(call.follows, call.pause_s) for call in run] == [((), 0.0), ((0,), 1.0)]


def test_calls_of_a_run_share_a_prefix_and_runs_only_the_system_message(tmp_path: Path) -> None:
    workload = AgentRuns(read_runs(write(tmp_path / "run.json", FAN_IN)), requests=8)
    firsts = list(workload.at_rate(1.0, seed=1))
    assert [asked.session for asked in firsts] == ["agent-0", "agent-1"]
    common = len(f"system\0{SYSTEM}\0") // (4 * BLOCK_TOKENS)
    assert firsts[0].blocks[:common] == firsts[1].blocks[:common]
    assert not set(firsts[0].blocks[common:]) & set(firsts[1].blocks[common:])
    calls = play(firsts[0])
    shared = len(f"system\0{SYSTEM}\0user\0{'a' * 400}\0") // (4 * BLOCK_TOKENS)
    assert calls[-1].blocks[:shared] == firsts[0].blocks[:shared]


def play(first: WorkloadRequest) -> list[WorkloadRequest]:
    """Return all calls of a run on a fleet that answers in a second."""
    found, waiting = [], [first]
    while waiting:
        asked = min(waiting, key=lambda each: each.at_s)
        waiting.remove(asked)
        found.append(asked)
        waiting += asked.then(asked.at_s + 1.0) if asked.then is not None else ()
    return found


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "Input data was truncated"),
        ('{"spans": 1}', r"Expected `array`.*\$.spans"),
        (json.dumps({"spans": [span("a", 5, 2, [])]}), "a span ends before it begins"),
        (json.dumps({"spans": []}), "no spans of calls to a model"),
        (json.dumps({"spans": [span("a", 0, 1, []) | {"attributes": {"gen_ai.input.messages": "1"}}]}), "span 'a'"),
    ],
)
def test_invalid_run_is_refused(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "run.json"
    path.write_text(text)
    with pytest.raises(TraceUnreadable, match=words):
        list(read_trace(path))


@pytest.mark.skipif(
    "SHOAL_TRACES_DIR" not in os.environ, reason="needs the traces: set SHOAL_TRACES_DIR to their folder"
)
def test_recorded_agents_are_played_to_their_end() -> None:
    path = Path(os.environ["SHOAL_TRACES_DIR"]) / "inference_perf_otel"
    assert block_tokens_of(path) == BLOCK_TOKENS
    calls = [asked for first in read_trace(path) for asked in play(first)]
    assert len(calls) == 73
    assert len({asked.session for asked in calls}) == 12
