"""Charts: the SVG contains what was drawn, and long lines lose points but no peak."""

import re
from math import inf, isnan
from pathlib import Path
from xml.etree import ElementTree

import pytest

from functions.cli.charts import MAX_POINTS, ChartMark, Panel, PictureImpossible, Series, check, lines, thinned


def test_names_titles_and_marks_are_in_the_picture(tmp_path: Path) -> None:
    path = tmp_path / "spike.svg"
    panel = Panel("replicas", "number", [Series("ready", [0, 1], [1, 2]), Series("starting", [0, 1], [0, 1])],
                  marks=[ChartMark(0.5, "5x"), ChartMark(1.5, "SLO", is_level=True)])  # fmt: skip
    lines(path, "A spike", [panel, panel], columns=2, note="of one seed")
    words = re.sub(r"<!--.*?-->", "", path.read_text(), flags=re.DOTALL)
    assert ElementTree.fromstring(words).tag.endswith("svg")
    for word in ("A spike", "replicas", "number", "ready", "starting", "5x", "SLO", "of one seed"):
        assert f">{word}</text>" in words, word
    assert words.count(">ready</text>") == 1  # the legend, once for both panels


def test_the_same_numbers_make_the_same_file(tmp_path: Path) -> None:
    drawn = []
    for name in ("one.svg", "two.svg"):
        lines(tmp_path / name, "A", [Panel("p", "y", [Series("s", [0, 1, 2], [1, None, inf])])])
        drawn.append((tmp_path / name).read_bytes())
    assert drawn[0] == drawn[1]


def test_draws_a_png(tmp_path: Path) -> None:
    lines(tmp_path / "p.png", "A", [Panel("p", "y", [Series("s", [0, 1], [1, 100])], is_log=True, y_max=200)])
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("name", ["picture.txt", "nowhere/picture.svg"])
def test_says_before_drawing_where_no_picture_can_be(tmp_path: Path, name: str) -> None:
    with pytest.raises(PictureImpossible, match=r"ends in|create it first"):
        check(tmp_path / name)


def test_needs_a_panel(tmp_path: Path) -> None:
    with pytest.raises(PictureImpossible, match="at least one panel"):
        lines(tmp_path / "p.svg", "A", [])


def test_a_long_line_keeps_its_peaks_and_its_order() -> None:
    ys = [0.0] * 50_000
    ys[31_234], ys[40_000] = 9.0, -3.0
    xs, kept = thinned(range(50_000), ys)
    assert len(kept) <= MAX_POINTS
    assert (max(kept), min(kept)) == (9.0, -3.0)
    assert xs[kept.index(9.0)] == 31_234
    assert list(xs) == sorted(xs)


def test_what_is_not_known_is_a_gap() -> None:
    assert [isnan(value) for value in thinned([0, 1, 2], [1.0, None, inf])[1]] == [False, True, True]
