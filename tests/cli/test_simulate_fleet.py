"""`shoal simulate fleet`: a table, JSON with every run, and error messages."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from functions.cli.main import app
from functions.cli.refused import CommandRefused


def shoal(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "functions.cli.main", "simulate", "fleet", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def refused(*words: str) -> str:
    """Run the command in this process and return its error message."""
    result = CliRunner().invoke(app, ["simulate", "fleet", *words])
    assert isinstance(result.exception, CommandRefused), result.output
    return str(result.exception)


SMALL = ("--requests", "200", "--replicas", "2", "--seeds", "2", "--load", "0.5")


def test_the_table_says_what_the_fleet_can_do_and_how_it_does_at_a_share_of_that() -> None:
    done = shoal(*SMALL)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("synthetic chats on 2 x h100-8b: the fleet keeps up with ")
    assert lines[2].split()[:2] == ["50%", "shoal"]
    assert "shoal at 50%" not in done.stdout, "progress is not part of the answer"


@pytest.mark.soak
def test_machines_get_every_run() -> None:
    done = shoal(*SMALL, "-o", "json")
    answer = json.loads(done.stdout)
    (cell,) = answer["cells"]
    assert answer["capacity_per_s"] > 0
    assert len(cell["runs"]) == 2
    assert cell["runs"][0]["bands"]["interactive"]["served"] > 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--profile", "tpu"), "there is no profile 'tpu': one of h100-8b"),
        (("--load", "0"), "0.0 is not a load"),
        (("--load", "nan"), "nan is not a load"),
        (("--trace", "missing.csv"), "the trace cannot be read"),
    ],
)
def test_what_is_wrong_is_said(words: tuple[str, ...], said: str) -> None:
    assert said in refused(*words)


def test_a_trace_that_breaks_off_is_said_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text('{"timestamp": 0, "input_length": 5, "output_length": 5}\n{"timestamp": 1')
    done = shoal("--trace", str(path))
    assert done.returncode == 1
    assert "line 2" in done.stderr
