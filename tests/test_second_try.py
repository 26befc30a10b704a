"""A failed test runs once more alone; a second failure, or many failures, fail the run."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.second_try import MOST
from tests.soak import sampled

ROOT = Path(__file__).parents[1]

AT_FIRST = """
from pathlib import Path

def test_at_first():
    seen = Path(__file__).with_suffix(".seen")
    if not seen.exists():
        seen.touch()
        raise AssertionError("the first time")
"""
ALWAYS = "def test_always():\n    assert not 'a fault'\n"
SOUND = "def test_sound():\n    pass\n"
MANY = "".join(f"def test_{number}():\n    assert not 'a fault'\n\n" for number in range(MOST + 1))


def ran(folder: Path, *options: str, **files: str) -> tuple[int, list[str]]:
    """Return the exit status and the lines after pytest's own output."""
    for name, content in files.items():
        (folder / f"test_{name}.py").write_text(content)
    command = [sys.executable, "-m", "tests.second_try", "-q", *options]
    done = subprocess.run(
        command, cwd=folder, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=120, check=False
    )
    return done.returncode, done.stdout.rstrip().rpartition("\n\n")[2].splitlines()


@pytest.mark.parametrize("options", sampled([(), ("-n", "2")], keep=[()]), ids=["one process", "two"])
def test_failure_that_passes_alone_is_named_and_run_passes(tmp_path: Path, options: tuple[str, ...]) -> None:
    status, said = ran(tmp_path, *options, first=AT_FIRST, sound=SOUND)
    assert status == 0
    assert said[0].startswith("failed beside others and passed alone")
    assert said[1:] == ["  test_first.py::test_at_first"]


def test_second_failure_fails_the_run(tmp_path: Path) -> None:
    status, said = ran(tmp_path, first=AT_FIRST, always=ALWAYS)
    assert status == 1
    assert said == ["failed again, alone:", "  test_always.py::test_always"], "and what passed alone is not among them"


def test_many_failures_are_not_tried_again(tmp_path: Path) -> None:
    status, said = ran(tmp_path, many=MANY)
    assert status == 1
    assert said[0] == f"{MOST + 1} tests failed, more than are tried again ({MOST}):"


def test_without_a_failure_nothing_is_added(tmp_path: Path) -> None:
    status, said = ran(tmp_path, sound=SOUND)
    assert status == 0
    assert "tried" not in "".join(said)


def test_collection_error_is_not_retried(tmp_path: Path) -> None:
    status, said = ran(tmp_path, broken="import nothing_of_that_name\n", sound=SOUND)
    assert status == pytest.ExitCode.INTERRUPTED
    assert "tried" not in "".join(said)
