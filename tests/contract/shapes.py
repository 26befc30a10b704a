"""Deep comparison of an answer with a pattern: exact keys in exact order, types or values at the leaves.

A pattern is a type (`str`), a literal (`"list"`, None), a Matching(regex), a list of patterns of the same length,
an Each(pattern) for any number of items, or a dictionary of patterns with exactly its keys in that order.
"""

import re
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Matching:
    regex: str


@dataclass(frozen=True)
class Each:
    pattern: Any
    at_least: int = 1


def assert_shape(value: Any, pattern: Any, at: str = "$") -> None:
    if isinstance(pattern, dict):
        assert isinstance(value, dict), f"{at}: {value!r} is no object"
        assert list(value) == list(pattern), f"{at}: keys {list(value)}, expected {list(pattern)}"
        for key, inner in pattern.items():
            assert_shape(value[key], inner, f"{at}.{key}")
    elif isinstance(pattern, Each):
        assert isinstance(value, list) and len(value) >= pattern.at_least, f"{at}: {value!r}"
        for index, item in enumerate(value):
            assert_shape(item, pattern.pattern, f"{at}[{index}]")
    elif isinstance(pattern, list):
        assert isinstance(value, list) and len(value) == len(pattern), f"{at}: {value!r}"
        for index, (item, inner) in enumerate(zip(value, pattern, strict=True)):
            assert_shape(item, inner, f"{at}[{index}]")
    else:
        _assert_leaf(value, pattern, at)


def _assert_leaf(value: Any, pattern: Any, at: str) -> None:
    if isinstance(pattern, Matching):
        assert isinstance(value, str) and re.fullmatch(pattern.regex, value, re.DOTALL), f"{at}: {value!r}"
    elif isinstance(pattern, type):
        assert type(value) is pattern, f"{at}: {value!r} is no {pattern.__name__}"
    else:
        assert value == pattern and type(value) is type(pattern), f"{at}: {value!r}, expected {pattern!r}"


def error_body(kind: str, message: str, *, code: int, param: Any = None) -> dict[str, Any]:
    """Return the pattern of vLLM's error object; `message` is a regular expression."""
    return {"error": {"message": Matching(message), "type": kind, "param": param, "code": code}}
