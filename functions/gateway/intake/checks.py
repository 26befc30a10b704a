"""Checks of a field's value: the vocabulary of the field tables.

A check returns what is wrong with a value, or None. In the error message its text follows the field's name and says
what is accepted ("must be an integer from 1 to 8"); the OpenAPI document is derived from these texts. A check never
raises, for any JSON value. Checks of messages and other content are in `content`.
"""

from collections.abc import Callable
from math import isfinite
from typing import Any

Check = Callable[[Any], str | None]  # returns what is wrong with a value, or None

INT32_MAX = 2**31 - 1
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1


def boolean(value: Any) -> str | None:
    return None if type(value) is bool else "must be true or false"


def text(value: Any) -> str | None:
    return None if type(value) is str else "must be a string"


def short_text(limit: int) -> Check:
    def check(value: Any) -> str | None:
        if type(value) is not str:
            return "must be a string"
        return None if len(value) <= limit else f"is over {limit} characters"

    return check


def object_check(value: Any) -> str | None:
    return None if type(value) is dict else "must be an object"


def text_or_object(value: Any) -> str | None:
    return None if type(value) in (str, dict) else "must be a string or an object"


def anything(value: Any) -> str | None:
    """Accept any value, by returning None, of a field that no engine uses and some clients send."""
    return None


def one_of(*allowed: str) -> Check:
    def check(value: Any) -> str | None:
        return None if type(value) is str and value in allowed else f"must be one of {', '.join(allowed)}"

    return check


def never(why: str) -> Check:
    """Return a check that accepts only false, for a switch that stays off. Its problem text is `why`."""

    def check(value: Any) -> str | None:
        return None if value is False else why

    return check


def integer(low: int, high: int) -> Check:
    def check(value: Any) -> str | None:
        ok = type(value) is int and low <= value <= high  # a bool is no int here
        return None if ok else f"must be an integer from {low} to {high}"

    return check


def number(low: float, high: float) -> Check:
    def check(value: Any) -> str | None:
        ok = type(value) in (int, float) and isfinite(value) and low <= value <= high
        return None if ok else f"must be a number from {low:g} to {high:g}"

    return check


def objects(limit: int, what: str) -> Check:
    def check(value: Any) -> str | None:
        if type(value) is not list or any(type(item) is not dict for item in value):
            return f"must be an array of {what} objects"
        return None if len(value) <= limit else f"has {len(value)} entries; the most is {limit}"

    return check


def texts(limit: int) -> Check:
    """Return a check that accepts an array of at most `limit` strings, or one string instead of an array."""

    def check(value: Any) -> str | None:
        strings = [value] if type(value) is str else value
        if type(strings) is not list or any(type(item) is not str for item in strings):
            return "must be a string or an array of strings"
        return None if len(strings) <= limit else f"has {len(strings)} strings; the most is {limit}"

    return check


def logit_bias(limit: int) -> Check:
    bias = number(-100.0, 100.0)

    def check(value: Any) -> str | None:
        if type(value) is not dict:
            return "must be an object of token ids and numbers"
        if len(value) > limit:
            return f"has {len(value)} entries; the most is {limit}"
        if any(not _is_token_id(key) or bias(number) for key, number in value.items()):
            return "must map token ids (digits) to numbers from -100 to 100"
        return None

    return check


def _is_token_id(key: str) -> bool:
    return key.isascii() and key.isdigit() and len(key) <= 10  # int() of thousands of digits raises in the engine


def stream_options(value: Any) -> str | None:
    if type(value) is not dict:
        return "must be an object"
    if any(type(value.get(name)) not in (bool, type(None)) for name in ("include_usage", "continuous_usage_stats")):
        return "has an include_usage or continuous_usage_stats that is not true or false"
    return None


def without(name: str, why: str) -> Check:
    """Return a check that accepts an object without the key `name`; `why` explains a rejection."""

    def check(value: Any) -> str | None:
        if type(value) is not dict:
            return "must be an object"
        return f"may not have '{name}': {why}" if name in value else None

    return check


def token_ids(value: Any) -> str | None:
    ok = type(value) is list and all(type(token) is int and 0 <= token <= INT64_MAX for token in value)
    return None if ok else "must be an array of token ids"


def few_token_ids(limit: int) -> Check:
    def check(value: Any) -> str | None:
        problem = token_ids(value)
        return problem or (f"has {len(value)} token ids; the most is {limit}" if len(value) > limit else None)

    return check


def prompts(limit: int, what: str, then: str = "", *, may_be_empty: bool = False) -> Check:
    """Return a check that accepts one text or prompt of token ids, or up to `limit` of them, all of one kind.

    `what` and `then` are words of the problem text; `may_be_empty` allows empty texts in an array.
    """
    wrong = "must be a string, an array of strings, an array of token ids, or an array of such arrays"

    def check(value: Any) -> str | None:
        if type(value) is str:
            return None if value else "must not be empty"
        if type(value) is not list or not value:
            return wrong
        if type(value[0]) is int:
            return None if token_ids(value) is None else wrong
        if len(value) > limit:
            return f"has {len(value)} {what}; the most is {limit}{then}"
        uniform = all(type(item) is str and (item or may_be_empty) for item in value) or all(
            item and token_ids(item) is None for item in value
        )
        return None if uniform else wrong

    return check
