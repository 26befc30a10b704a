"""Pages of tests: those that they name exist, and none that a page puts into `make test` is in soak alone."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.docs.pages import ROOT

PAGES = ("docs/tests-moved.md", "docs/measurements/cluster-defects.md")
_NAMED = re.compile(r"`([\w/.-]+(?:\.py(?:::[\w…]+)?|/))`")


class Named(NamedTuple):
    line: int
    path: str  # from tests/ or the root on; a folder ends with /
    test: str  # "": the file as a whole; `test_a…` stands for what begins so
    is_run: bool  # said to be in `make test` or `make check`

    def __str__(self) -> str:
        return f"line {self.line}: {self.path}{'::' if self.test else ''}{self.test}"


def named(text: str) -> Iterator[Named]:
    runs: list[bool] = []  # by column
    for number, line in enumerate(text.splitlines(), 1):
        cells = line.strip().strip("|").split("|") if line.startswith("|") else [line]
        if not line.startswith("|"):
            runs = []
        elif not runs:
            runs = ["make test" in cell or "make check" in cell for cell in cells]
        for column, cell in enumerate(cells):
            for found in _NAMED.findall(cell):
                path, _, test = found.partition("::")
                yield Named(number, path, test, is_run=column < len(runs) and runs[column])


def files_of(path: str) -> list[Path]:
    places = [folder / path for folder in (ROOT / "tests", ROOT)]
    if path.endswith("/"):
        return [file for place in places for file in sorted(place.rglob("test_*.py"))]
    return [place for place in places if place.is_file()]


@cache
def marked_tests(file: Path) -> dict[str, bool]:
    """Its test functions, and whether `make soak` alone runs them."""
    tree = ast.parse(file.read_text())
    marks = [ast.unparse(each.value) for each in tree.body if isinstance(each, ast.Assign) and _is_mark(each)]
    whole = any("mark.soak" in mark for mark in marks)
    functions = [each for each in tree.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
    return {
        each.name: whole or any(ast.unparse(mark) == "pytest.mark.soak" for mark in each.decorator_list)
        for each in functions
        if each.name.startswith("test_")
    }


def _is_mark(node: ast.Assign) -> bool:
    return any(isinstance(target, ast.Name) and target.id == "pytestmark" for target in node.targets)


def wrong(text: str) -> list[str]:
    found = []
    for each in named(text):
        files = files_of(each.path)
        meant = {
            name: is_soak
            for file in files
            for name, is_soak in marked_tests(file).items()
            if not each.test or name == each.test or (each.test.endswith("…") and name.startswith(each.test[:-1]))
        }
        if not files or (each.test and not meant):
            found.append(f"{each} does not exist")
        elif each.is_run and meant and all(meant.values()):
            found.append(f"{each} is run by `make soak` alone")
    return found


@pytest.mark.parametrize("page", PAGES)
def test_what_the_page_names_exists_and_runs_where_it_says(page: str) -> None:
    text = (ROOT / page).read_text()
    assert len(list(named(text))) > 20
    assert wrong(text) == []


@pytest.mark.parametrize(
    ("cell", "what"),
    [
        ("`gateway/test_gone.py`", "does not exist"),
        ("`gateway/test_splits.py::test_gone`", "does not exist"),
        ("`decisions/gone/`", "does not exist"),
        ("`e2e/test_hot_swap.py`", "is run by `make soak` alone"),
    ],
)
def test_a_wrong_row_is_found(cell: str, what: str) -> None:
    table = f"| test | in `make test` | in `make soak` |\n|---|---|---|\n| all of it | {cell} | each |\n"
    assert [each.partition(" ")[2] for each in wrong(table)] == [f"3: {cell.strip('`')} {what}"]
    assert wrong("| test | in `make soak` |\n|---|---|\n| `e2e/test_hot_swap.py` | each |\n") == []
