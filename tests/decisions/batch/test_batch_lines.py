"""Lines of input files: split alike for any block sizes, with one error code for each mistake."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from functions.decisions.batch.lines import (
    MAX_FILE_LINES,
    MAX_LINES,
    Line,
    LineCutter,
    RawLine,
    read_line,
    too_many_lines,
)
from functions.decisions.batch.record import LineProblem

CHAT = "/v1/chat/completions"
GOOD: dict[str, Any] = {"custom_id": "a", "method": "POST", "url": CHAT, "body": {"model": "m"}}


def cut(blocks: list[bytes], most: int = 100) -> list[RawLine]:
    cutter = LineCutter(most)
    found = [line for block in blocks for line in cutter.feed(block)]
    return found + list(cutter.end())


@given(st.lists(st.sampled_from([b"", b" \r", b"x", b"y" * 9, b"z" * 300]), max_size=12), st.data())
def test_lines_do_not_depend_on_block_boundaries(lines: list[bytes], data: st.DataObject) -> None:
    whole = b"\n".join(lines)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=6)))
    blocks = [whole[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    expected = [(number, one) for number, one in enumerate(lines, 1) if one.strip()]
    found = cut(blocks)
    assert [(line.number, line.text) for line in found] == [
        (number, one if len(one) <= 100 else None) for number, one in expected
    ]
    assert [line.ordinal for line in found] == list(range(len(expected)))


def test_endless_line_is_not_buffered() -> None:
    cutter = LineCutter(1000)
    for _ in range(1000):
        assert not list(cutter.feed(b"x" * 1000))
    assert len(cutter._held) <= 1000
    assert [line.text for line in cutter.end()] == [None]


def test_file_of_empty_lines_stops_at_the_line_limit() -> None:
    cutter = LineCutter(1000)
    found = [line for _ in range(40) for line in cutter.feed(b"\n" * 4096)]
    assert [too_many_lines(line) is not None for line in found] == [True] and cutter.is_over
    assert cutter._number == MAX_FILE_LINES + 1 and not list(cutter.end())
    assert not list(cutter.feed(b"x" * 900)) and not cutter._held


def test_file_may_have_the_maximum_of_lines_and_a_final_newline() -> None:
    found = cut([b"\n" * (MAX_FILE_LINES - 1), b"x\n"])
    assert [(line.number, line.text) for line in found] == [(MAX_FILE_LINES, b"x")]
    assert [too_many_lines(line) is not None for line in cut([b"\n" * MAX_FILE_LINES, b"x"])] == [True]


@pytest.mark.parametrize(
    ("parsed", "code"),
    [
        ([], "invalid_json_line"),
        (GOOD | {"custom_id": ""}, "missing_custom_id"),
        (GOOD | {"custom_id": 7}, "missing_custom_id"),
        ({name: GOOD[name] for name in ("method", "url", "body")}, "missing_custom_id"),
        (GOOD | {"custom_id": "x" * 257}, "invalid_custom_id"),
        (GOOD | {"method": "GET"}, "invalid_method"),
        (GOOD | {"url": "/v1/embeddings"}, "mismatched_url"),
        (GOOD | {"url": None}, "mismatched_url"),
        (GOOD | {"body": "x"}, "missing_body"),
        (GOOD | {"body": {"stream": True}}, "stream_not_offered"),
        (GOOD | {"body": {"stream": 1}}, "stream_not_offered"),
        (GOOD | {"tenant": "globex"}, "unknown_field"),
    ],
)
def test_each_mistake_has_its_code_and_line(parsed: object, code: str) -> None:
    problem = read_line(RawLine(12, 11, b""), parsed, CHAT)
    assert isinstance(problem, LineProblem) and (problem.code, problem.line) == (code, 12)


def test_valid_line_becomes_a_request() -> None:
    assert read_line(RawLine(3, 2, b""), GOOD, CHAT) == Line(2, "a", {"model": "m"})


def test_requests_and_lines_of_a_file_are_limited() -> None:
    assert too_many_lines(RawLine(MAX_LINES, MAX_LINES - 1, b"x")) is None
    assert too_many_lines(RawLine(MAX_LINES + 1, MAX_LINES, b"x")) is not None
    assert too_many_lines(RawLine(MAX_FILE_LINES + 1, 5, b"x")) is not None
