"""Pairs: a query is read with each of its documents."""

from typing import Any

import pytest

from functions.gateway.intake.features import read_again_bytes


def test_worked_example_of_the_prologue() -> None:
    assert read_again_bytes({"query": "a dozen byte", "documents": ["one", "two", "three"]}) == 24


@pytest.mark.parametrize(
    ("body", "again_bytes"),
    [
        ({"query": "four", "documents": ["one"]}, 0),
        ({"query": "four", "documents": "one"}, 0),
        ({"text_1": "four", "text_2": ["a"] * 100}, 99 * 4),
        ({"text_1": ["four"], "text_2": ["a"] * 100}, 99 * 4),
        ({"queries": ["ab", "cd"], "items": ["a", "b"]}, 0),
        ({"query": "four", "documents": {"content": [{"type": "text", "text": "a"}] * 3}}, 8),
        ({"query": "four", "documents": []}, 0),
        ({"input": "no query"}, 0),
    ],
)
def test_only_the_query_of_many_documents_is_counted_again(body: dict[str, Any], again_bytes: int) -> None:
    assert read_again_bytes(body) == again_bytes
