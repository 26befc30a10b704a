"""What is read more than once where texts are scored against each other.

A model that scores reads a query anew with each of its documents, and its usage counts it as often:

    prompt = documents x query + all documents           one query; as many queries as documents are read once each

Worked example (test_worked_example_of_the_prologue): a query of 12 bytes over three documents is read three times, so
24 bytes come on top of what the request's text is. A model that embeds reads every text once.

Neighbours: `features` adds it to a prompt's size; `prompt_text` has the text itself.
"""

from typing import Any

from functions.gateway.intake.json_body import JsonObject
from functions.gateway.intake.lengths import text_bytes

_QUERIES = ("query", "queries", "text_1", "data_1")
_DOCUMENTS = ("documents", "items", "text_2", "data_2")


def read_again_bytes(parsed: JsonObject) -> int:
    """How many bytes of text a scoring model reads beyond those of the request; its fields were checked."""
    queries, documents = _first(parsed, _QUERIES), _first(parsed, _DOCUMENTS)
    if _how_many(queries) != 1:
        return 0
    return (_how_many(documents) - 1) * text_bytes(queries)


def _first(parsed: JsonObject, names: tuple[str, ...]) -> Any:
    return next((parsed[name] for name in names if parsed.get(name) is not None), "")


def _how_many(value: Any) -> int:
    """A list has as many as it is long; an object keeps its list under `content`."""
    content = value.get("content") if type(value) is dict else value
    return max(1, len(content)) if type(content) is list else 1
