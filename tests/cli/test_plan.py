"""`shoal plan` as a process: prepared changes are judged correctly, revisions are read without a checkout."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.fleets import git
from tests.roles import run
from tests.simulator.plan.prepared import PREPARED, written

pytestmark = [pytest.mark.servers, pytest.mark.timeout(600)]  # whole simulations, run in sequence

SMALL = ("--requests", "100", "--seeds", "1", "--pool", "chat-8b")
HOOK = Path(__file__).parents[2] / "docs" / "how-to" / "plan.md"


@dataclass
class Checkout:
    """Return a working copy of the prepared fleet with everything committed."""

    root: Path
    env: dict[str, str]

    def plan(self, *words: str) -> "subprocess.CompletedProcess[str]":
        return run("functions.cli.main", "plan", *words, cwd=self.root, env=self.env)

    def commit(self, message: str) -> None:
        git("add", "-A", at=self.root)
        who = ("-c", "user.name=op", "-c", "user.email=op@example.com")
        git(*who, "commit", "--quiet", "-m", message, at=self.root)


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    root = written(tmp_path / "fleet")
    git("init", "--quiet", "--initial-branch=main", str(root), at=tmp_path)
    made = Checkout(root, {**os.environ, "SHOAL_STATE_DIR": str(tmp_path / "no-fleet")})
    made.commit("the fleet")
    return made


@pytest.mark.soak
@pytest.mark.parametrize("name", PREPARED)
def test_prepared_changes_are_judged_right(name: str, checkout: Checkout, tmp_path: Path) -> None:
    case = PREPARED[name]
    written(checkout.root, name)
    done = checkout.plan("--requests", "1500", "--seeds", "4", *case.options, "-o", "json")
    answer = json.loads(done.stdout)
    assert answer["verdict"] == case.verdict, done.stdout
    assert done.returncode == (1 if case.refuses else 0)


@pytest.mark.soak
def test_the_table_says_what_changes_what_was_played_and_what_comes_of_it(checkout: Checkout, tmp_path: Path) -> None:
    written(checkout.root, "smaller-steps")
    picture = tmp_path / "plan.svg"
    done = checkout.plan(*SMALL, "--plot", str(picture))
    assert done.returncode == 0, done.stderr
    assert "~ pool chat-8b: --max-num-batched-tokens 8192 -> 512" in done.stdout
    assert "traffic: MADE UP, since no requests were recorded" in done.stdout
    assert "engine:  chat-8b: computed: llama-3.1-8b on 1 x L40S" in done.stdout
    assert "promise: chat-8b, interactive: first token within 2,000 ms for 99%" in done.stdout
    assert "window 1 of 1" not in done.stdout, "progress is not part of the answer"
    assert "<svg" in picture.read_text()


@pytest.mark.soak
def test_what_is_not_simulated_is_said(checkout: Checkout) -> None:
    routing = checkout.root / "policies" / "routing.yaml"
    routing.write_text(routing.read_text() + "  unknownFields: refuse\n")
    done = checkout.plan(*SMALL)
    assert "not simulated: routing default: unknown_fields" in done.stdout
    machine = json.loads(checkout.plan(*SMALL, "-o", "json").stdout)
    assert machine["not_simulated"][0]["what"] == "routing default: unknown_fields"
    assert machine["changes"][0]["kind"] == "routing"
    figures = {(each["pool"], each["class"], each["figure"]) for each in machine["figures"]}
    assert {("chat-8b", "interactive", "ttft_p99_ms"), ("chat-8b", "", "hit_ratio")} <= figures


@pytest.mark.soak
def test_revisions_are_read_from_a_bare_repository(checkout: Checkout, tmp_path: Path) -> None:
    written(checkout.root, "tenant-added")
    checkout.commit("a tenant")
    bare = tmp_path / "bare.git"
    git("clone", "--quiet", "--bare", str(checkout.root), str(bare), at=tmp_path)
    done = checkout.plan(str(bare), "--base", "main~1", "--rev", "main", *SMALL, "-o", "json")
    answer = json.loads(done.stdout)
    assert [change["words"].partition(":")[0] for change in answer["changes"]] == ["tenant initech added"]
    assert answer["verdict"] == "same"
    assert (answer["base"].split()[0], answer["candidate"].split()[0]) == ("main~1", "main")


@pytest.mark.soak
def test_the_hook_of_the_docs_refuses_a_push_that_breaks_a_promise(checkout: Checkout, tmp_path: Path) -> None:
    bare = tmp_path / "bare.git"
    git("clone", "--quiet", "--bare", str(checkout.root), str(bare), at=tmp_path)
    _, _, rest = HOOK.read_text().partition("```sh pre-receive needs: fleet\n")
    script = rest.partition("```")[0]
    assert script.startswith("#!/bin/sh")
    shoal = f'"{sys.executable}" -m functions.cli.main'
    hook = bare / "hooks" / "pre-receive"
    hook.write_text(script.replace("shoal plan", f"{shoal} plan --requests 900 --seeds 2 --pool chat-8b"))
    hook.chmod(0o755)
    written(checkout.root, "fewer-replicas")
    checkout.commit("half the replicas")
    refused = push(checkout, bare)
    assert refused.returncode != 0
    assert "BROKEN" in refused.stderr
    git("reset", "--quiet", "--hard", "HEAD~1", at=checkout.root)
    written(checkout.root, "tenant-added")
    checkout.commit("a tenant")
    taken = push(checkout, bare)
    assert taken.returncode == 0, taken.stderr


def push(checkout: Checkout, bare: Path) -> "subprocess.CompletedProcess[str]":
    command = ["git", "push", str(bare), "main"]
    return subprocess.run(
        command, cwd=checkout.root, env=checkout.env, capture_output=True, text=True, timeout=300, check=False
    )


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (("--base", "nowhere"), 1, "no revision 'nowhere'"),
        (("--pool", "unknown"), 1, "the base has no pool 'unknown' that answers with text"),
        (("--load", "lots"), 1, "'lots' is not a load"),
        (("--load", "unknown=0.5"), 1, "--load names 'unknown', which is not a pool of the base"),
        (("--trace", "missing.csv"), 1, "missing.csv"),
        (("--plot", "picture.gif"), 1, "use a name that ends in .svg or .png"),
        (("--seeds", "0"), 2, "--seeds"),
        (("--what",), 2, "--what"),
    ],
)
def test_what_is_wrong_is_said(words: tuple[str, ...], status: int, said: str, checkout: Checkout) -> None:
    done = checkout.plan(*words)
    assert (done.returncode, done.stdout) == (status, "")
    assert said in done.stderr


def test_a_pool_in_which_no_request_begins_is_said(checkout: Checkout) -> None:
    """There must be no division by zero."""
    pools = checkout.root / "inferenceservices" / "pools.yaml"
    pools.write_text(pools.read_text().replace("minReplicas: 2", "minReplicas: 0"))
    checkout.commit("nobody")
    done = checkout.plan("--pool", "large-32b")
    assert (done.returncode, done.stdout) == (1, "")
    assert "no request starts in large-32b" in done.stderr


def test_a_configuration_that_is_wrong_is_not_played(checkout: Checkout) -> None:
    policies = checkout.root / "policies" / "routing.yaml"
    policies.write_text(policies.read_text().replace("boundedLoad", "bounded"))
    done = checkout.plan()
    assert done.returncode == 1
    assert "policies/routing.yaml" in done.stderr


def test_without_a_repository_and_a_fleet_there_is_nothing_to_compare_with(tmp_path: Path) -> None:
    root = written(tmp_path / "loose")
    done = Checkout(root, {**os.environ, "SHOAL_STATE_DIR": str(tmp_path), "GIT_CEILING_DIRECTORIES": str(tmp_path)})
    found = done.plan()
    assert found.returncode == 1
    assert "name the base with --base REV" in found.stderr
