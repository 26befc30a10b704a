"""`python -m studies table` as a command: it stores its runs, continues them, and refuses impossible input."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.servers, pytest.mark.timeout(600)]  # it starts simulation processes


def study(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "studies", "table", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)


SMALL = ("--trace", "chats", "--requests", "100", "--seeds", "1", "--load", "0.6", "--router", "shoal")


@pytest.mark.soak
def test_table_continues_stored_runs(tmp_path: Path) -> None:
    results, report, plot = tmp_path / "runs.jsonl", tmp_path / "table.md", tmp_path / "table.svg"
    first = study(str(results), *SMALL, "-o", "json")
    assert first.returncode == 0, first.stderr
    assert [cell["router"] for cell in json.loads(first.stdout)["cells"]] == ["shoal"]
    had = results.read_bytes()
    second = study(str(results), *SMALL, "--router", "round-robin", "--report", str(report), "--plot", str(plot))
    assert second.returncode == 0, second.stderr
    assert results.read_bytes().startswith(had), "what was there is there still"
    assert "round-robin" in second.stdout, "it is the best of the others, there being no other"
    assert "| 60% | shoal |" in report.read_text()
    assert plot.read_text().lstrip().startswith("<?xml")


def test_table_refuses_impossible_input(tmp_path: Path) -> None:
    results = tmp_path / "runs.jsonl"
    results.write_text('{"type":"sizes","requests":7,"seeds":1}\n')
    other = study(str(results), *SMALL)
    assert other.returncode == 1
    assert "was made for" in other.stderr
    assert results.read_text().count("\n") == 1, "and is left as it was"
    unknown = study(str(tmp_path / "new.jsonl"), "--trace", "burst")
    assert unknown.returncode == 1
    assert "one of chats, adapters, mooncake" in unknown.stderr
    missing = study(str(tmp_path / "new.jsonl"), "--trace", "azure", "--traces-dir", str(tmp_path))
    assert missing.returncode == 1
    assert "cannot be used" in missing.stderr
