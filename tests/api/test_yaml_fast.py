"""The fast YAML reader agrees with ruamel on everything it accepts, and leaves doubtful text to ruamel."""

from collections.abc import Iterator

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from functions.api import yaml_parse
from functions.api.yaml_documents import read_documents
from functions.api.yaml_fast import read_fast
from tests.api.sources import FILES, demo_files

LAYOUT = ["a", "b: ", "- ", "? ", ": ", "[", "]", "{", "}", ", ", "\n", "\n  ", "\n    ", "---\n", "...\n", " #c\n"]
PLAIN = ["on", "yes", "0o17", "017", "0x1f", "1_000", "1e3", "1.5", "-1", "~", "null", "true", ".inf", "-", "?", ":"]
ODD = ["'x'", '"x"', '"\\n"', "&a", "*a", "!x", "|", ">", "%", "@", "`", "\t", "é", "\u2028", "\x85", "\ufeff", "<<"]
pieces = st.sampled_from(LAYOUT + PLAIN + ODD)
lines = st.lists(pieces, max_size=25).map("".join)
keyed = st.lists(st.tuples(st.sampled_from("abc"), pieces, pieces), max_size=6).map(
    lambda entries: "".join(f"{key}: {one}{two}\n" for key, one, two in entries)
)


def _places(text: str) -> Iterator[tuple[object, int, int, int]]:
    """Yield value, line, column and first line of each document from the slow parser; fail on problems."""
    parsed = yaml_parse.parse_text("f", text)
    assert parsed.problems == (), parsed.problems
    for document in parsed.documents:
        yield document.root.plain(), document.root.place.line, document.root.place.column, document.first_line


@given(lines | keyed | st.text(alphabet="[]{}:,-?'\"#ab1. \n", max_size=60))
@settings(max_examples=600, deadline=None)
def test_the_fast_reader_never_disagrees(text: str) -> None:
    fast = read_fast(text)
    if fast is not None:
        assert [(it.value, it.line, it.column, it.first_line) for it in fast] == list(_places(text))


@given(lines | keyed)
@example(" #c\n\ufeff")  # a byte order mark is text, except as the file's first character
@example("a: 1\n---\n\ufeff\ufeffb: 2\n")
@settings(max_examples=200, deadline=None)
def test_a_documents_own_text_gives_the_same_tree_at_the_same_lines(text: str) -> None:
    for written in read_documents("f", text.encode()).documents:
        tree = written.document.tree()
        assert (tree.plain(), tree.place) == (written.value, written.document.place)


@pytest.mark.parametrize("text", [*FILES.values(), *demo_files().values()])
def test_ordinary_files_are_read_fast_and_alike(text: str) -> None:
    fast = read_fast(text)
    assert fast is not None
    assert [(it.value, it.line, it.column, it.first_line) for it in fast] == list(_places(text))


@pytest.mark.parametrize(
    "text",
    [
        "a: &x 1\nb: *x\n",
        "a: !!str 1\n",
        "a: 1\na: 2\n",
        "<<: {a: 1}\n",
        "1: 2\n",
        "{a: 1}: 2\n",
        "a:\t1\n",
        "a: 1\r\n",
        "a: 1\n...\n...\n",
        "%YAML 1.1\n---\na: on\n",
        "a: |\n  text\n",
        "a: one\n  two\n",
        '"a\n  b": 1\n',
        "a: [\n",
        "a: 1\x85b: 2\n",
        "[" * 33 + "]" * 33,
    ],
)
def test_doubtful_text_is_left_to_the_slow_parser(text: str) -> None:
    assert read_fast(text) is None


def test_booleans_and_octals_are_those_of_yaml_1_2() -> None:
    fast = read_fast("[on, yes, Off, 0o17, 017, 0x1f, 1_000, 1:30, true, 12]\n")
    assert fast is not None
    assert fast[0].value == ["on", "yes", "Off", "0o17", "017", "0x1f", "1_000", "1:30", True, 12]
