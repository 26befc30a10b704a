"""`shoal rollout` as a process against a real registry."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from itertools import takewhile
from pathlib import Path

import pytest

from functions.cli.context import current_context
from functions.cli.registry_client import Registry
from tests import roles
from tests.fleets import wait_until
from tests.registry.console_rig import ConsoleRig, console_rig
from tests.registry.test_process import TOKEN

pytestmark = [pytest.mark.servers, pytest.mark.timeout(300)]
Shoal = Callable[..., "subprocess.CompletedProcess[str]"]
UNKNOWN = "ro-00000000"


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleRig]:
    with console_rig(tmp_path_factory.mktemp("rollouts")) as rig:
        yield rig


@pytest.fixture
def environment(rig: ConsoleRig, tmp_path: Path) -> dict[str, str]:
    """Run the command without a fleet: the environment names the registry and a key, as on a tenant's machine."""
    named = {"SHOAL_CLI_REGISTRY_URL": rig.url, "SHOAL_CLI_KEY": TOKEN, "SHOAL_STATE_DIR": str(tmp_path / "none")}
    return os.environ | named


@pytest.fixture
def shoal(environment: dict[str, str], tmp_path: Path) -> Shoal:
    def run(*arguments: str, **variables: str) -> "subprocess.CompletedProcess[str]":
        return roles.run("functions.cli.main", *arguments, env=environment | variables, cwd=tmp_path)

    return run


def test_those_under_way_are_listed_and_ended_ones_when_asked(rig: ConsoleRig, shoal: Shoal) -> None:
    active, ended = rig.rollout("listed"), rig.rollout("gone")
    assert rig.client.post(f"/v1/rollouts/{ended}/rollback", json={}).status_code == 200
    listed = shoal("rollout", "ls")
    assert listed.returncode == 0, listed.stderr
    assert active in listed.stdout
    assert ended not in listed.stdout
    every = json.loads(shoal("rollout", "ls", "--all", "-o", "json").stdout)["rollouts"]
    assert {row["id"]: row["state"] for row in every}.items() >= {active: "running", ended: "rolled_back"}.items()


def test_a_rollout_is_paused_resumed_and_rolled_back_by_its_model(rig: ConsoleRig, shoal: Shoal) -> None:
    rollout = rig.rollout("acted")
    for verb, state in (("pause", "paused"), ("resume", "running"), ("rollback", "rolled back")):
        done = shoal("rollout", verb, "acme/bot:acted")
        assert done.returncode == 0, done.stderr
        assert f"acme/bot:acted v1 → v2 is {state}" in done.stdout
    again = shoal("rollout", "rollback", rollout, "--reason", "twice")
    assert again.returncode == 1
    assert "rolled back" in again.stderr
    assert "HTTP 409, illegal_transition" in again.stderr


def test_promote_and_a_reason_are_kept(rig: ConsoleRig, shoal: Shoal) -> None:
    promoted, back = rig.rollout("quick"), rig.rollout("reasoned")
    assert json.loads(shoal("rollout", "promote", promoted, "-o", "json").stdout)["state"] == "completed"
    assert shoal("rollout", "rollback", back, "--reason", "smells").returncode == 0
    assert rig.state_of(back)["reason"] == "rolled back by operator: smells"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (UNKNOWN, "there is no rollout ro-00000000"),
        ("acme/none", "acme/none:stable has had no rollout"),
        ("No Such", "neither a rollout's id (ro-…) nor a model"),
    ],
)
def test_what_is_not_there_is_told(shoal: Shoal, name: str, words: str) -> None:
    for verb in ("watch", "pause"):
        refused = shoal("rollout", verb, name)
        assert refused.returncode == 1
        assert words in refused.stderr


def test_watching_ends_with_the_rollout_and_says_how(
    rig: ConsoleRig, environment: dict[str, str], tmp_path: Path
) -> None:
    """The command prints a line for each step; its status is 1, since the rollout was rolled back."""
    rollout = rig.rollout("watched", loaded=False)
    lines: list[str] = []
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "functions.cli.main", "rollout", "watch", rollout],
        env=environment, cwd=tmp_path, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)  # noqa: PERF402 - looked at meanwhile

    def told(words: str) -> bool:
        return any(words in line for line in lines)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        wait_until("the beginning is told", lambda: told(" loading "), 60)
        assert rig.client.post(f"/v1/rollouts/{rollout}/pause", json={}).status_code == 200
        wait_until("the pause is told", lambda: told("paused by operator"), 60)
        assert rig.client.post(f"/v1/rollouts/{rollout}/rollback", json={"reason": "enough"}).status_code == 200
        assert process.wait(60) == 1
    finally:
        process.kill()
        reader.join(60)
        assert process.stdout is not None
        process.stdout.close()
    before = list(takewhile(lambda line: "paused by operator" not in line, lines))
    assert before and all(" loading " in line for line in before), "the same again after ten seconds, nothing else"
    assert lines[-1].rstrip().endswith("rolled back by operator: enough")


def test_watching_for_programs_is_an_object_a_change(rig: ConsoleRig, shoal: Shoal) -> None:
    rollout = rig.rollout("told")
    assert rig.client.post(f"/v1/rollouts/{rollout}/promote", json={}).status_code == 200
    told = shoal("rollout", "watch", rollout, "-o", "json")
    assert told.returncode == 0
    (only,) = (json.loads(line) for line in told.stdout.splitlines())
    assert only["state"] == "completed"
    assert [row["name"] for row in only["figures"]["rows"]][:2] == ["requests", "failed"]


def test_a_list_is_read_page_after_page(
    rig: ConsoleRig, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = {rig.rollout(f"paged{number}") for number in range(5)}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with Registry(current_context()) as registry:
        rows = list(registry.pages("/v1/rollouts", page_rows=2))
        whole = registry.get("/v1/rollouts", limit=1000)["data"]
    assert [row["id"] for row in rows] == [row["id"] for row in whole]
    assert made <= {row["id"] for row in rows}


def test_top_takes_one_look_where_there_is_no_terminal(rig: ConsoleRig, shoal: Shoal) -> None:
    rollout = rig.rollout("seen")
    look = shoal("top")
    assert look.returncode == 0, look.stderr
    assert rollout in look.stdout
    assert "cannot reach the fleet bus" in look.stdout


def test_without_a_registry_the_way_to_one_is_told(shoal: Shoal) -> None:
    away = shoal("rollout", "ls", SHOAL_CLI_REGISTRY_URL="http://127.0.0.1:1")
    assert (away.returncode, away.stdout) == (1, "")
    assert "no answer from the registry at http://127.0.0.1:1" in away.stderr
    keyless = shoal("rollout", "ls", SHOAL_CLI_KEY="")
    assert "SHOAL_CLI_REGISTRY_URL needs SHOAL_CLI_KEY" in keyless.stderr
    wrong = shoal("rollout", "ls", SHOAL_CLI_KEY="nobody")
    assert wrong.returncode == 1
    assert "HTTP 401" in wrong.stderr
