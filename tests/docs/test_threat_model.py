"""A test checks every promise of the threat model: each row of its tables of attempts names existing tests."""

import re

from tests.docs.pages import ROOT

_PAGE = ROOT / "docs" / "explanation" / "threat-model.md"
_TEST = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")


def _promises() -> list[str]:
    """Return the rows of the tables whose last column is `test`."""
    rows: list[str] = []
    is_promise = False
    for line in _PAGE.read_text().splitlines():
        if line.startswith("|") and line.rstrip().endswith("| test |"):
            is_promise = True
        elif not line.startswith("|"):
            is_promise = False
        elif is_promise and not set(line) <= set("|- "):
            rows.append(line)
    return rows


def test_every_line_names_a_test() -> None:
    assert len(_promises()) > 20
    assert [row for row in _promises() if not _TEST.search(row)] == []


def test_every_test_that_it_names_is_there() -> None:
    named = _TEST.findall(_PAGE.read_text())
    there = [(file, name) for file, name in named if f"def {name}(" in (ROOT / file).read_text()]
    assert named == there
