"""Parts of the commands: reading a stream, reporting missing parts, tables, progress without a terminal."""

import io
from typing import Any

import pytest
from rich.console import Console

from functions.cli.chat import _texts
from functions.cli.fleet_wait import in_force, missing_words
from functions.cli.refused import CommandRefused
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
    with pytest.raises(CommandRefused, match=words):
        list(_texts(iter(lines)))


def process(role: str, phase: str, **more: Any) -> dict[str, Any]:
    known = {"name": f"{role}-x", "role": role, "phase": phase, "replica": "x-0" if role == "engine" else None}
    return {**known, "pool": "x", "pid": 7, "port": 1, "restarts": 2, "age_s": 3.0, "reason": "", **more}


REVISION = {
    "branch": "main", "tip": "main@aaa", "tip_message": "tip", "desired": "main@aaa", "message": "more tokens",
    "published": True, "last_attempted": "main@aaa", "last_applied": "main@aaa", "applied_unix_s": 0.0,
    "suspended": None, "problems": [], "problem_count": 0, "trouble": "", "history": [],
}  # fmt: skip
SNAPSHOT = {
    "epoch": 3, "message": "published epoch 3", "problems": [], "held": [], "complete": True, "age_s": 90.0,
    "gateway_epoch": 3,
}  # fmt: skip


def controller(*processes: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "controller": {"pid": 1, "operation": ""},
        "target": {"engine": "sim", "replicas": None},
        "processes": list(processes),
        "stalled": "",
        "revision": REVISION,
        "snapshot": SNAPSHOT,
        "counts": {},
        "objects": [],
        "registry_problem": "",
        **more,
    }


def test_what_is_missing_is_counted_by_role() -> None:
    status = controller(
        process("engine", "ready"), process("engine", "starting"), process("gateway", "pending"), process("s3", "ready")
    )
    assert missing_words(status) == "engine 1/2, gateway 0/1"


@pytest.mark.parametrize(
    ("snapshot", "words"),
    [
        ({}, "settling"),
        ({"gateway_epoch": 4}, "settling"),
        ({"gateway_epoch": 2}, "snapshot: epoch 3 on its way to the gateway"),
        ({"gateway_epoch": None}, "snapshot: epoch 3 on its way to the gateway"),
        ({"complete": False}, "snapshot: published epoch 3"),
    ],
)
def test_a_snapshot_is_in_force_once_the_gateway_uses_it(snapshot: dict[str, Any], words: str) -> None:
    """Otherwise the gateway answers the first requests of `up` from an older snapshot, without its models or keys."""
    status = controller(process("gateway", "ready"), snapshot={**SNAPSHOT, **snapshot})
    assert missing_words(status) == words
    assert in_force(status["snapshot"]) == (words == "settling")


def shown(seen: dict[str, Any], width: int = 160) -> str:
    output = io.StringIO()
    everything = {"ready": True, "gateway": "https://g", "state_dir": "/s", "replicas": []}
    everything |= {"adapters": (), "rollouts": [], "pools": {}, "base_versions": {}, "prometheus": None}
    show({**everything, "without_controller": [], **seen}, Console(file=output, width=width))
    return output.getvalue()


def test_a_pool_whose_overload_ladder_is_in_use_is_named_with_its_rungs() -> None:
    pools = {"a": {"rungs": ["shed", "shift"], "why": "100 tokens/s are offered"}, "b": {"rungs": [], "why": ""}}
    text = shown({"controller": controller(process("engine", "ready")), "pools": pools})
    assert "a is overloaded: shed, shift (100 tokens/s are offered)" in text
    assert "b is overloaded" not in text


def test_replica_without_heartbeats_is_still_shown() -> None:
    text = shown({"controller": controller(process("engine", "starting"), registry_problem="registry away")})
    assert "x-0" in text
    assert "no heartbeat" in text
    assert "registry away" in text


def test_a_refused_revision_is_told_with_its_problems_and_what_runs_instead() -> None:
    problems = [f"policies/tenants.yaml:{line}:1: spec.tier: is required" for line in range(7)]
    revision = {**REVISION, "tip": "main@bbb", "tip_message": "oops", "problems": problems, "problem_count": 7}
    text = shown({"controller": controller(revision=revision)})
    assert "main@aaa  more tokens  applied" in text
    assert "main@bbb  oops  7 problems" in text
    assert text.count("spec.tier: is required") == 5
    assert "… and 2 more" in text


def test_a_branch_that_is_gone_is_told() -> None:
    problems = [".: the branch main has no commit"]
    revision = {**REVISION, "tip": "", "tip_message": "", "problems": problems, "problem_count": 1}
    text = shown({"controller": controller(revision=revision)})
    assert "1 problem" in text
    assert "has no commit" in text


def test_a_suspension_is_told_with_its_reason_and_how_it_ends() -> None:
    suspended = {"reason": "moving house", "since_unix_s": 0.0}
    revision = {**REVISION, "suspended": suspended, "tip": "main@bbb", "tip_message": "later"}
    text = shown({"controller": controller(revision=revision)})
    assert "moving house; `shoal resume` ends it" in text
    assert "main@bbb  later  waits" in text


@pytest.mark.parametrize(
    ("gateway_epoch", "words"),
    [(3, "epoch 3, 90 s old, on the gateway"), (2, "the gateway uses epoch 2"), (None, "does not report its epoch")],
)
def test_the_snapshots_way_to_the_gateway_is_told(gateway_epoch: int | None, words: str) -> None:
    assert words in shown({"controller": controller(snapshot={**SNAPSHOT, "gateway_epoch": gateway_epoch})})


def condition(kind: str, name: str, state: str, message: str = "because") -> dict[str, str]:
    return {"kind": kind, "name": name, "state": state, "reason": "Why", "message": message}


def test_healthy_parts_are_counted_and_others_listed() -> None:
    told = controller(
        objects=[condition("Tenant", "acme", "Stalled", "no key"), condition("QuotaPolicy", "free", "Ready"),
                 condition("InferenceService", "base", "Ready")],
        counts={"Tenant": {"Ready": 41, "Reconciling": 0, "Stalled": 1}, "QuotaPolicy": {"Ready": 1},
                "InferenceService": {"Ready": 1}},
    )  # fmt: skip
    text = shown({"controller": told})
    assert "tenant/acme" in text
    assert "no key" in text
    assert "pool/base" in text
    assert "quota/free" not in text
    assert "also ready: 1 QuotaPolicy, 41 Tenants" in text


def test_the_tables_fit_into_80_columns() -> None:
    objects = [
        condition("Model", "a-tenant/with-quite-a-long-model-name", "Reconciling", "v1 loaded on 1 of 2 replicas")
    ]
    text = shown({"controller": controller(process("engine", "ready"), objects=objects)}, width=80)
    assert max(len(line) for line in text.splitlines()) <= 80
    assert "".join(text.split()).count("loadedon1of2replicas") == 1
    assert "adapters  restarts" in text, "no heading is cut off"


def test_markup_in_external_text_is_not_interpreted() -> None:
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
    TerminalReporter(Console(file=output, width=40)).print_line("curl " + "x" * 100 + " \\")
    assert output.getvalue() == "curl " + "x" * 100 + " \\\n"
