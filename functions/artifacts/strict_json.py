"""Strict parsing of JSON objects from untrusted sources: one meaning, bounded before parsing.

The usual parsers use the last value of a repeated key, and each has other liberties (NaN, a byte order mark), so two
parsers can read one document differently. And a few MB of brackets become hundreds of MB of objects, so these marks
are counted before the document is parsed.
"""

import json
from collections import Counter
from typing import Any

from functions.artifacts.errors import ArtifactRefused


def strict_object(document: bytes, *, what: str, max_marks: int) -> dict[str, Any]:
    """Parse `document` as a JSON object without duplicate keys, NaN or infinity; raise ArtifactRefused, with `what` as
    its name, for anything else. `max_marks` limits the number of commas and opening brackets, and so the number of
    values."""
    if not document.lstrip(b" \t\r\n").startswith(b"{"):
        raise ArtifactRefused(f"{what} does not begin with {{")
    marks = sum(document.count(mark) for mark in (b",", b"{", b"["))
    if marks > max_marks:
        raise ArtifactRefused(f"{what} has {marks} commas and brackets; at most {max_marks} make sense")
    try:
        found = json.loads(document.decode("utf-8"), object_pairs_hook=_no_duplicates, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise ArtifactRefused(f"{what} is not strict JSON: {error}") from error
    if not isinstance(found, dict):
        raise ArtifactRefused(f"{what} is not a JSON object")
    return found


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        ((twice, _),) = Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"the key {twice[:100]!r} occurs twice")
    return found


def _no_constant(text: str) -> None:
    raise ValueError(f"{text} is not JSON")
