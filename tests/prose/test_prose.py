"""The check of prose finds each kind of finding, and lets no package have more than its count."""

import json
from functools import partial
from pathlib import Path

import pytest

from tests.prose import __main__ as prose
from tests.prose.readers import Text, texts_of

WORDS = prose.Words.read()


def findings(folder: Path, name: str, text: str) -> list[tuple[str, int]]:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return [(each.kind, each.line) for each in prose.findings_in([path], WORDS, folder)]


@pytest.mark.parametrize(
    "docstring",
    ["Of one report.", "Whether it runs.", "None: only the disk bounds them.", "In order.", "The same for all."],
)
def test_docstring_that_continues_its_name_is_a_fragment(tmp_path: Path, docstring: str) -> None:
    assert findings(tmp_path, "functions/api/a.py", f'def f():\n    """{docstring}"""\n') == [("fragment", 2)]


@pytest.mark.parametrize(
    "docstring",
    ["Return the replicas.", "If two policies match, the later one wins.", "It returns nothing.", "Offset of a block."],
)
def test_whole_sentence_and_noun_phrase_pass(tmp_path: Path, docstring: str) -> None:
    assert findings(tmp_path, "functions/api/a.py", f'def f():\n    """{docstring}"""\n') == []


def test_continued_comment_is_read_as_one(tmp_path: Path) -> None:
    text = "# The blocks\n# of one replica.\nA = 1  # of all\n"
    assert findings(tmp_path, "functions/api/a.py", text) == [("fragment", 3)]


def test_comments_of_tools_are_no_prose(tmp_path: Path) -> None:
    assert findings(tmp_path, "functions/api/a.py", "A = 1  # noqa: who cares\n") == []


def test_person_words_are_found_in_prose_test_names_yaml_and_pages(tmp_path: Path) -> None:
    assert findings(tmp_path, "tests/api/test_a.py", "def test_nobody_waits():\n    pass\n") == [("person", 1)]
    assert findings(tmp_path, "manifests/base/a.yaml", "a: 1  # whoever reads\n") == [("person", 1)]
    assert findings(tmp_path, "docs/contributing.md", "# A\n\n`who` runs, he said.\n```sh\nwho\n```\n") == [
        ("person", 3)
    ]


def test_help_of_options_and_metrics_is_prose(tmp_path: Path) -> None:
    text = 'A = Option(help="Of this fleet.")\nB = Gauge("shoal_b", "What the rung carries.")\n'
    assert findings(tmp_path, "functions/cli/a.py", text) == [("fragment", 1), ("fragment", 2)]


def test_bare_generic_verb_is_found_with_its_underscore(tmp_path: Path) -> None:
    text = "def _look():\n    pass\n\n\ndef look_up():\n    pass\n"
    assert findings(tmp_path, "functions/api/a.py", text) == [("generic verb", 1)]


def test_public_class_names_are_unique_in_functions(tmp_path: Path) -> None:
    paths = [tmp_path / "functions" / package / "a.py" for package in ("api", "cli")]
    for path in paths:
        path.parent.mkdir(parents=True)
        path.write_text("class Refused:\n    pass\n\n\nclass _Private:\n    pass\n")
    found = prose.findings_in(paths, WORDS, tmp_path)
    assert [(each.package, each.kind) for each in found] == [
        ("functions/api", "class twice"),
        ("functions/cli", "class twice"),
    ]


def test_counts_may_fall_but_not_rise() -> None:
    most = {"functions/api": {"fragment": 2}}
    assert prose.risen({"functions/api": {"fragment": 2}}, most) == []
    assert prose.risen({"functions/api": {"fragment": 3}}, most) == [("functions/api", "fragment")]
    assert prose.risen({"functions/api": {"person": 1}}, most) == [("functions/api", "person")]
    assert prose.risen({"functions/new": {"fragment": 1}}, most) == [("functions/new", "fragment")]


def test_a_risen_count_fails_the_check_and_names_the_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    counts = tmp_path / "counts.json"
    monkeypatch.setattr(prose, "COUNTS", counts)
    monkeypatch.setattr(prose, "ROOT", tmp_path)
    page = tmp_path / "docs" / "contributing.md"
    page.parent.mkdir()
    page.write_text("Nobody waits.\n")
    monkeypatch.setattr(prose, "tracked_files", lambda: [page])
    monkeypatch.setattr(prose, "findings_in", partial(prose.findings_in, root=tmp_path))
    counts.write_text(json.dumps({}))
    assert prose.main(["--update"]) == 1
    assert "docs/contributing.md:1: person: Nobody waits." in capsys.readouterr().out
    assert json.loads(counts.read_text()) == {}
    counts.write_text(json.dumps({"docs": {"person": 2}}))
    assert prose.main(["--update"]) == 0
    assert json.loads(counts.read_text()) == {"docs": {"person": 1}}


def test_reader_gives_the_line_of_each_text(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text('"""Module."""\n\n\nclass A:\n    """Class."""\n')
    assert texts_of(path) == [
        Text("docstring", 1, "Module."),
        Text("class", 4, "A"),
        Text("docstring", 5, "Class."),
    ]
