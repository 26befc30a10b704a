"""YAML parsing: hostile text is rejected early with a message; places in valid text are kept."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from functions.api import yaml_fast, yaml_parse
from functions.api.yaml_documents import FileRead, read_documents
from functions.api.yaml_events import FILE_MAX_BYTES
from functions.api.yaml_parse import MAX_DEPTH, MAX_NODES


def parse(file: str, content: bytes) -> FileRead:
    """Read like the loader: with the fast reader if nothing is doubtful, else with ruamel."""
    return read_documents(file, content)


def told(content: bytes) -> str:
    (problem,) = parse("f.yaml", content).problems
    return str(problem)


def laughs(levels: int) -> bytes:
    """Return an alias bomb: each line expands to ten times the line before it."""
    lines = (b"a%d: &a%d [%s]" % (level, level, b",".join([b"*a%d" % (level - 1)] * 10)) for level in range(1, levels))
    return b"a0: &a0 x\n" + b"\n".join(lines)


HOSTILE = [
    ("deep lists", b"[" * 100_000, f"f.yaml:1:{MAX_DEPTH + 1}: nested deeper than {MAX_DEPTH} levels"),
    ("deep mappings", b"{a: " * 50_000, f"f.yaml:1:{4 * MAX_DEPTH + 1}: nested deeper"),
    ("deep by alias", b"a: &a " + b"[" * 30 + b"]" * 30 + b"\nb: [[[[*a]]]]", "f.yaml:2:8: nested deeper"),
    ("alias bomb", laughs(9), f"more than {MAX_NODES} values in one document, aliases written out"),
    (
        "alias bomb in every document",
        (laughs(4) + b"\n---\n") * 200,
        "the aliases of this file stand for more than 100000 values",
    ),
    (
        "alias of a long text",
        b"a: &a " + b"x" * 100_000 + b"\nb: [" + b"*a, " * 1000 + b"]",
        "stand for more than 100000",
    ),
    (
        "alias of a long key",
        b"a: &a {? " + b"x" * 9000 + b" : 1}\nb: [" + b"*a, " * 1000 + b"]",
        "stand for more than 100000",
    ),
    ("alias inside itself", b"a: &a [*a]", "f.yaml:1:8: the alias *a is inside the value that it refers to"),
    ("alias to nothing", b"a: *b", "f.yaml:1:4: the alias *b has no anchor &b before it"),
    ("too large", b"#" * (FILE_MAX_BYTES + 1), f"f.yaml: {FILE_MAX_BYTES + 1} bytes is over the limit"),
    ("not UTF-8", b"a: 1\nb: x\xff", "f.yaml:2:5: not UTF-8: the byte 0xff is not allowed here"),
    ("UTF-16", "a: 1".encode("utf-16-le"), "f.yaml:1:2: the character U+0000 is not allowed in YAML"),
    ("control character", b"a: 1\nb: \x07", "f.yaml:2:4: the character U+0007 is not allowed in YAML"),
    ("escape beyond Unicode", b'a: "\\UFFFFFFFF"', "f.yaml: not YAML: "),
    (
        "python object",
        b"a: !!python/object/apply:os.system [id]",
        'the tag "tag:yaml.org,2002:python/object/apply:os.system" is not supported',
    ),
    ("mapping as a key", b"{a: 1}: 2", "f.yaml:1:1: a key must be text; found a collection"),
    ("number as a key", b"1: 2", "f.yaml:1:1: a key must be text; found the number 1; put it in quotes"),
    (
        "a merge conflict",
        b"a: 1\n<<<<<<< HEAD\nb: 2\n=======\nb: 3\n>>>>>>> other\n",
        "f.yaml:2:1: a merge conflict (<<<<<<< HEAD) was not resolved: keep the intended lines",
    ),
    ("two roots", b"a: 1\n]", "f.yaml:2:1: not YAML: "),
]


@pytest.mark.parametrize(("content", "says"), [case[1:] for case in HOSTILE], ids=[case[0] for case in HOSTILE])
def test_hostile_text_is_refused_in_words(content: bytes, says: str) -> None:
    assert says in told(content)


@pytest.mark.parametrize("piece", [b"[", b"{a: ", b"- ", b"? ", b"'", b'"', b"&a ", b"#", b"[a,", b"a:\n "])
def test_a_large_hostile_file_costs_seconds_at_most(piece: bytes) -> None:
    """ruamel's scanner is quadratic in open brackets: 20,000 of them took 40 s before depth was bounded here."""
    started_s = time.process_time()
    parse("f.yaml", (piece * FILE_MAX_BYTES)[: FILE_MAX_BYTES // 8])
    assert time.process_time() - started_s < 15


def test_many_values_without_any_alias_are_refused_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yaml_parse, "MAX_NODES", 1000)
    monkeypatch.setattr(yaml_fast, "MAX_VALUES", 500)
    assert told(b"- 1\n" * 1000) == "f.yaml:1000:3: more than 1000 values in one document, aliases written out"
    assert parse("f.yaml", b"- 1\n" * 999).problems == ()


@given(st.binary(max_size=300) | st.text(alphabet="[]{}:,-?&*!|>'\"%@`#ab1 \n\t", max_size=120).map(str.encode))
@settings(max_examples=400, deadline=None)
def test_whatever_the_bytes_parsing_never_raises(content: bytes) -> None:
    parsed = parse("f.yaml", content)
    for problem in parsed.problems:
        assert problem.place.file == "f.yaml"
    for document in parsed.documents:
        assert document.document.tree().plain() == document.value


def test_scalars_follow_yaml_1_2() -> None:
    text = b"[yes, true, null, ~, 12, 010, 1.5, .inf, 2027-06-30, 0x10, '5', !!str 5, 99999999999999999999]"
    (document,) = parse("f", text).documents
    assert document.value == [
        "yes",
        True,
        None,
        None,
        12,
        "010",
        1.5,
        ".inf",
        "2027-06-30",
        "0x10",
        "5",
        "5",
        "99999999999999999999",
    ]


def test_a_problem_in_one_document_leaves_the_earlier_ones() -> None:
    parsed = parse("f", b"a: 1\n---\nb: [\n---\nc: 1\n")
    assert [document.value for document in parsed.documents] == [{"a": 1}]
    assert len(parsed.problems) == 1


def test_duplicate_keys_report_both_and_use_the_first() -> None:
    parsed = parse("f", b"a: 1\nb: 2\na: 3\n")
    assert [document.value for document in parsed.documents] == [{"a": 1, "b": 2}]
    assert str(parsed.problems[0]) == 'f:3:1: the key "a" occurs twice in one mapping; first at line 1'


def test_anchors_end_with_their_document() -> None:
    assert "has no anchor" in told(b"a: &x 1\n---\nb: *x\n")


def test_places_are_found_by_path() -> None:
    (document,) = parse("f", b"a:\n  b:\n    - c: 1\n    - d: x\n").documents
    tree = document.document.tree()
    place = tree.locate(["a", "b", 1, "d"])
    assert (place.line, place.column) == (4, 10)
    assert tree.locate_key(["a", "b", 1, "d"]).column == 7
    gone = tree.locate(["a", "b", 7, "d"])
    assert (gone.line, gone.column) == (2, 3)


def test_a_byte_order_mark_is_no_content() -> None:
    assert parse("f", b"\xef\xbb\xbfa: 1").documents[0].value == {"a": 1}
