"""Tests of tests/collecting.py: files without a selected test are left out, and no other file is."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.collecting import names_processes, takes_processes_alone

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("expression", "alone"),
    [
        ("(servers or engine) and not drill and not soak", True),
        ("drill and not soak", True),
        ("soak and (engine or drill)", True),
        ("soak and not engine and not drill", False),
        ("not servers and not engine and not drill and not soak and not cluster", False),
        ("not soak and not cluster", False),
        ("", False),
    ],
)
def test_files_are_left_out_only_if_process_tests_alone_are_selected(expression: str, alone: bool) -> None:
    assert takes_processes_alone(expression) == alone


@pytest.mark.parametrize(
    ("file", "names"),
    [
        ("tests/fleet/test_valkey_bus.py", True),  # the file names the marker
        ("tests/contract/test_chat.py", True),  # conftest.py adds the markers
        ("tests/decisions/test_own_models.py", False),
    ],
)
def test_a_marker_is_named_by_the_file_or_by_a_conftest(file: str, names: bool) -> None:
    assert (ROOT / file).exists()
    assert names_processes(ROOT / file, ROOT) == names


def collected(folder: Path, content: str, *arguments: str) -> str:
    (folder / "test_one.py").write_text(content)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n    servers\n")
    command = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "tests.collecting", *arguments]
    done = subprocess.run(
        command, cwd=folder, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=120, check=False
    )
    return done.stdout + done.stderr


def test_hidden_marker_is_refused_in_a_full_run(tmp_path: Path) -> None:
    hidden = "import pytest\npytestmark = getattr(pytest.mark, 'serv' + 'ers')\ndef test_it():\n    pass\n"
    assert "test_one.py::test_it has a marker that neither" in collected(tmp_path, hidden)


def test_a_file_without_the_marker_is_not_imported_unless_it_is_named(tmp_path: Path) -> None:
    broken = "raise RuntimeError('imported')\n"
    assert "imported" in collected(tmp_path, broken)
    assert "imported" not in collected(tmp_path, broken, "-m", "servers")
    assert "imported" in collected(tmp_path, broken, "-m", "servers", "test_one.py")
