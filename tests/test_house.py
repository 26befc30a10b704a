"""Limits of the source tree: few slips, no very large file, no import cycle."""

from pathlib import Path

import pytest

from tests.house import House, house

MOST_SLIPS = 29  # 28
MOST_LINES = 450


@pytest.fixture(scope="module")
def own() -> House:
    return house()


def test_few_files_are_slips(own: House) -> None:
    """If this fails, a new file of a few lines belongs into its only importer, or lacks a second importer."""
    assert len(own.slips()) <= MOST_SLIPS, own.slips()


def test_no_file_exceeds_the_line_limit(own: House) -> None:
    assert own.large(MOST_LINES) == {}


def test_source_tree_has_no_import_cycle(own: House) -> None:
    assert own.circle() == []


def small_house(folder: Path, **files: str) -> House:
    (folder / "functions").mkdir()
    for name, text in {"__init__": "", **files}.items():
        (folder / "functions" / f"{name}.py").write_text(text)
    return house(folder)


def test_a_slip_has_one_importer_and_few_lines(tmp_path: Path) -> None:
    made = small_house(
        tmp_path,
        slip="A = 1\n",
        lazy="B = 1\n",
        shared="C = 1\n",
        long="D = 1\n" * 81,
        one="from functions.slip import A\nfrom functions import shared, long\n",
        two="from functions.shared import C\n\ndef f():\n    from functions import lazy\n",
    )
    assert made.slips() == {"functions.slip": "functions.one", "functions.lazy": "functions.two"}
    assert made.large(80) == {"functions.long": 81}


def test_import_cycle_is_found_but_not_of_imports_inside_functions(tmp_path: Path) -> None:
    typed = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from functions.one import A\n"
    made = small_house(
        tmp_path,
        one="from functions.two import B\nA = 1\n",
        two="from functions.three import C\n",
        three=typed,
        late="def f():\n    from functions import later\n",
        later="import functions.late\n",
    )
    assert set(made.circle()) == {"functions.one", "functions.two", "functions.three"}
    without = {name: module for name, module in made.modules.items() if name != "functions.three"}
    assert House(without).circle() == []
