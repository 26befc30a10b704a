"""Recorded decisions, read back: what a replay can follow, and what it says it cannot."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from functions.cli.main import app
from functions.decisions.catalogue_policies import DEFAULT_ADMISSION, DEFAULT_ROUTING
from functions.fleet.heartbeat import Heartbeat
from functions.simulator.replay.replay import replay
from functions.simulator.workload.trace_text import TraceUnreadable


def beat(replica: str, sequence: int = 1) -> dict[str, Any]:
    said = Heartbeat(
        replica_id=replica, pool="small", host="h", port=1, phase="ready", sequence=sequence, incarnation=1,
        sent_unix_s=1.0, kv_blocks_total=1000,
    )  # fmt: skip
    return {"e": "beat", "t": 1.0, "beat": said}


POLICY = {"e": "policy", "t": 2.0, "pool": "small", "routing": DEFAULT_ROUTING, "admission": DEFAULT_ADMISSION}


def come(request_id: str = "q1", **changes: Any) -> dict[str, Any]:
    return {
        "e": "come", "t": 2.0, "id": request_id, "pool": "small", "tenant": "acme", "model": "small",
        "is_adapter": False, "session": None, "band": "interactive", "prompt_tokens": 100, "expected_tokens": 10,
        "weight": 1.0,
        "stream": True, "deadline_ms": None,
    } | changes  # fmt: skip


def route(request_id: str, replica: str, reason: str, **cached: int) -> dict[str, Any]:
    return {"e": "route", "t": 2.0, "id": request_id, "replica": replica, "reason": reason, "cached": cached}


def over(request_id: str) -> dict[str, Any]:
    return {"e": "over", "t": 3.0, "id": request_id, "usage": (100, 0, 10)}


def write(path: Path, *events: Any) -> Path:
    path.write_bytes(b"".join(msgspec.json.encode(event) + b"\n" for event in events))
    return path


RUN = (
    {"e": "begin", "t": 0.0, "zone": "", "router": "shoal"},
    beat("a"),
    POLICY,
    come(),
    route("q1", "a", "least_predicted_wait"),
    {"e": "first", "t": 2.5, "id": "q1"},
    beat("b"),
    come("q2"),
    route("q2", "a", "prefix", a=99),
    over("q1"),
    {"e": "sweep", "t": 3.0},
    over("q2"),
)


def test_a_run_is_followed(tmp_path: Path) -> None:
    """The second request goes where most of it was known to be cached, though the other replica has nothing to do."""
    found = replay(write(tmp_path / "run.jsonl", *RUN))
    assert found.differences == ()
    assert (found.requests, found.routes, found.differing) == (2, 2, 0)


def test_another_choice_is_said_with_its_line(tmp_path: Path) -> None:
    events = [*RUN]
    events[8] = route("q2", "b", "least_predicted_wait", a=99)
    found = replay(write(tmp_path / "run.jsonl", *events))
    assert found.differing == 1
    [one] = found.differences
    assert (one.line, one.recorded[2], one.replayed[2]) == (8, "b", "a")


def test_a_choice_that_was_not_made_and_one_that_was_are_differences(tmp_path: Path) -> None:
    waits = {"e": "waits", "t": 2.0, "id": "q1"}
    found = replay(write(tmp_path / "run.jsonl", *RUN[:4], waits))
    assert found.differences[0].recorded[0] == "waits"
    found = replay(write(tmp_path / "run.jsonl", *RUN[:4]))
    assert found.differences[0].recorded[0] == "nothing"


def test_the_command_says_so_and_fails_where_something_differs(tmp_path: Path) -> None:
    good = CliRunner().invoke(app, ["simulate", "replay", str(write(tmp_path / "good.jsonl", *RUN))])
    assert good.exit_code == 0, good.output
    assert "none chosen otherwise" in " ".join(good.output.split())
    bad = CliRunner().invoke(app, ["simulate", "replay", str(write(tmp_path / "bad.jsonl", *RUN[:4])), "-o", "json"])
    assert bad.exit_code == 1
    assert '"differing": 1' in bad.output


@pytest.mark.parametrize(
    ("event", "words"),
    [
        ({"e": "failed", "t": 1.0, "replica": "a", "failure": "reset"}, "line 13: .* attempt at a failed"),
        ({"e": "put_off", "t": 1.0, "id": "q1"}, "line 13: .* wait for an adapter"),
        (come("q3", stream=False), "line 13: .* follows streams"),
        (come("q3", deadline_ms=100), "line 13: .* without a deadline"),
        ({"e": "begin", "t": 0.0, "zone": "", "router": "round-robin"}, "line 13: .* router was round-robin"),
        (POLICY | {"admission": msgspec.structs.replace(DEFAULT_ADMISSION, max_queued_tokens=1)}, "policy of small"),
    ],
)
def test_what_a_replay_does_not_follow_is_refused(tmp_path: Path, event: Any, words: str) -> None:
    with pytest.raises(TraceUnreadable, match=words):
        replay(write(tmp_path / "run.jsonl", *RUN, event))


def test_hostile_lines_are_refused_and_a_cut_last_one_is_passed_over(tmp_path: Path) -> None:
    path = write(tmp_path / "run.jsonl", *RUN)
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"e": "swe')
    assert replay(path).differing == 0
    path.write_bytes(b'{"e": "what"}\n' + whole)
    with pytest.raises(TraceUnreadable, match="line 1: Invalid value 'what'"):
        replay(path)
    path.write_bytes(b"")
    assert replay(path).requests == 0


def test_what_came_after_the_file_was_full_does_not_count(tmp_path: Path) -> None:
    assert replay(write(tmp_path / "run.jsonl", *RUN, {"e": "full"}, come("q3"))).requests == 2
