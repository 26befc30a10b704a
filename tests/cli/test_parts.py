"""What the commands are made of: reading a stream, telling what is missing, tables, progress without a terminal."""

import io
from typing import Any

import pytest
from rich.console import Console

from functions.cli.answers import _texts
from functions.cli.fleet_wait import missing_words
from functions.cli.refused import Refused
from functions.cli.status_tables import show
from functions.cli.terminal import TerminalReporter


def data(content: str) -> str:
    return 'data: {"choices": [{"delta": {"content": "' + content + '"}}]}'


def test_a_streams_texts_come_out_in_order() -> None:
    lines = [
        data("Pa"),
        "",
        ": keep-alive",
        data("ris"),
        'data: {"choices": [], "usage": {}}',
        "data: [DONE]",
        data("x"),
    ]
    assert list(_texts(iter(lines))) == ["Pa", "ris"]


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([data("Pa")], "without \\[DONE\\]"),
        ([data("Pa"), 'data: {"error": {"message": "replica lost"}}'], "replica lost"),
    ],
)
def test_a_stream_that_was_cut_off_is_no_answer(lines: list[str], words: str) -> None:
    with pytest.raises(Refused, match=words):
        list(_texts(iter(lines)))


def process(role: str, phase: str, **more: Any) -> dict[str, Any]:
    known = {"name": f"{role}-x", "role": role, "phase": phase, "replica": "x-0" if role == "engine" else None}
    return {**known, "pool": "x", "pid": 7, "port": 1, "restarts": 2, "age_s": 3.0, "reason": "", **more}


def controller(*processes: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "controller": {"pid": 1, "operation": ""},
        "target": {"engine": "sim", "replicas": None},
        "processes": list(processes),
        "config": {"problems": [], "stalled": "", "directory": "/config"},
        "snapshot": {"epoch": 3, "message": "published epoch 3", "problems": [], "complete": True},
        **more,
    }


def test_what_is_missing_is_counted_by_role() -> None:
    status = controller(
        process("engine", "ready"), process("engine", "starting"), process("gateway", "pending"), process("s3", "ready")
    )
    assert missing_words(status) == "engine 1/2, gateway 0/1"


def shown(seen: dict[str, Any]) -> str:
    output = io.StringIO()
    everything = {"ready": True, "gateway": "https://g", "state_dir": "/s", "replicas": [], "registry_problem": ""}
    show({**everything, "without_controller": [], **seen}, Console(file=output, width=160))
    return output.getvalue()


def test_a_replica_that_nobody_heard_of_is_still_shown() -> None:
    text = shown({"controller": controller(process("engine", "starting")), "registry_problem": "registry away"})
    assert "x-0" in text
    assert "not heard of" in text
    assert "registry away" in text


def test_a_problem_that_two_report_is_shown_once() -> None:
    problem = "policies/tenants.yaml:3:1: spec.tier: is required"
    told = controller(
        config={"problems": [problem], "stalled": "", "directory": "/config"},
        snapshot={"epoch": 3, "message": "", "problems": [problem], "complete": False},
    )
    assert shown({"controller": told}).count(problem) == 1


def test_markup_in_foreign_words_is_only_text() -> None:
    told = controller(process("engine", "crashed", reason="[red]not ours[/]"))
    assert "[red]not ours[/]" in shown({"controller": told})


def test_without_a_controller_what_still_serves_is_named() -> None:
    text = shown({"controller": None, "without_controller": [{"name": "gateway", "pid": 42}]})
    assert "gateway (42)" in text
    assert "shoal up" in text


def test_steps_are_plain_lines_without_a_terminal_and_say_how_they_ended() -> None:
    output = io.StringIO()
    reporter = TerminalReporter(Console(file=output, width=200))
    with reporter.step("First [thing]") as step:
        step.note("done well")
    with pytest.raises(ValueError, match="broken"), reporter.step("Second"):
        raise ValueError("broken")
    lines = output.getvalue().splitlines()
    assert lines[0] == "… First [thing]"
    assert lines[1].startswith("✓ First [thing]")
    assert lines[1].endswith("done well")
    assert lines[3].startswith("✗ Second")


def test_lines_to_paste_are_never_broken() -> None:
    output = io.StringIO()
    TerminalReporter(Console(file=output, width=40)).say("curl " + "x" * 100 + " \\")
    assert output.getvalue() == "curl " + "x" * 100 + " \\\n"
