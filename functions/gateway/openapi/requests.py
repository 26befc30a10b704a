"""Schemas of request bodies, derived from the field tables that admission uses.

A check is a function that returns what is wrong with a value. Its text for a value of unknown type names the accepted
values ("must be an integer from 1 to 8"), so the schema is derived from the text, which also becomes the description.
An unknown text gives a schema without a type, which is incomplete but not wrong.

Neighbours: `functions.gateway.intake.routes` has the tables; `tests/gateway/test_openapi.py` compares schemas and
checks.
"""

import re
from collections.abc import Callable
from typing import Any

from functions.gateway.intake.checks import Check, anything
from functions.gateway.intake.fields import RejectedField, Strip
from functions.gateway.intake.routes import Route
from functions.gateway.limits import Limits

Schema = dict[str, Any]

_MANY = 10_000  # more entries, or characters, than any limit allows
_STRING: Schema = {"type": "string"}
_TOKEN_IDS: Schema = {"type": "array", "items": {"type": "integer", "minimum": 0}}
_OBJECTS: Schema = {"type": "array", "items": {"type": "object"}}
_CONTENT: Schema = {"anyOf": [_STRING, {**_OBJECTS, "minItems": 1}]}
_SCORED: Schema = {"anyOf": [{**_STRING, "minLength": 1}, {"type": "object", "required": ["content"]}]}
_MESSAGE: Schema = {
    "type": "object",
    "required": ["role"],
    "properties": {"role": _STRING, "content": {"anyOf": [*_CONTENT["anyOf"], {"type": "null"}]}},
}
_NUMBER = r"-?[\d.e+-]+"


def body_schema(route: Route, limits: Limits) -> Schema:
    """Return the schema of a route's body from its table's checks. The pool's policy decides about other fields."""
    must = ["model", *(group[0] for group in route.required if len(group) == 1)]
    properties = {"model": {**_STRING, "description": "`base`, or `tenant/name`, then `:channel` or `@version`."}}
    for name, rule in route.table(limits).rules.items():
        schema = (
            {"type": "null", "description": rule.why} if isinstance(rule, RejectedField) else field_schema(_check(rule))
        )
        properties[name] = schema if name in must else _or_null(schema)
    body: Schema = {"type": "object", "required": must, "properties": properties}
    choices = [{"anyOf": [{"required": [name]} for name in group]} for group in route.required if len(group) > 1]
    return body | ({"allOf": choices} if choices else {})


def _check(rule: Check | Strip) -> Check:
    return rule.check if isinstance(rule, Strip) else rule


def field_schema(check: Check) -> Schema:
    """Return the schema of the values that a check accepts, except null, read from the text of its complaint."""
    if check is anything:
        return {"anyOf": [{}], "description": "is ignored"}
    words = check(object()) or ""
    known = _switched_off(check, words) or next(
        (make(found, check) for pattern, make in _READINGS if (found := re.fullmatch(pattern, words))), {}
    )
    return known | {"description": words}


def _or_null(schema: Schema) -> Schema:
    """Return the schema that also allows null, which means absent, for an optional field."""
    known = {name: value for name, value in schema.items() if name != "description"}
    if not known or known == {"type": "null"}:
        return schema
    if isinstance(known.get("type"), str):
        return schema | {"type": [known["type"], "null"]}
    return {"anyOf": [known, {"type": "null"}], "description": schema["description"]}


def _switched_off(check: Check, words: str) -> Schema | None:
    """Return the schema of a field that is always refused, or that accepts only false; None for other fields."""
    if words.startswith("must be"):
        return None
    if check(False) is None:
        return {"const": False}
    probes: tuple[Any, ...] = ("x", ["x"], [{}], [1], {}, 1, True)
    refused = all(check(value) is not None for value in probes)
    return {"type": "null"} if refused else None


def _most(check: Check, entry: Any) -> dict[str, int]:
    """Return the limit of an array's entries, read from the check's text for an array with too many."""
    found = re.search(r"(?:the most is|1 to) (\d+)", check([entry] * _MANY) or "")
    return {"maxItems": int(found[1])} if found else {}


def _string(_: re.Match[str], check: Check) -> Schema:
    found = re.fullmatch(r"is over (\d+) characters", check("x" * _MANY) or "")
    return _STRING | ({"maxLength": int(found[1])} if found else {})


def _one_of(found: re.Match[str], _: Check) -> Schema:
    return {"enum": found[1].split(", ")}


def _range(kind: str, read: Callable[[str], float]) -> Callable[[re.Match[str], Check], Schema]:
    return lambda found, _: {"type": kind, "minimum": read(found[1]), "maximum": read(found[2])}


def _array(entry: Any, **items: Any) -> Callable[[re.Match[str], Check], Schema]:
    return lambda _, check: {"type": "array", **items, **_most(check, entry)}


def _text_or_many(_: re.Match[str], check: Check) -> Schema:
    return {"anyOf": [_STRING, {"type": "array", "items": _STRING, **_most(check, "x")}]}


def _inputs(_: re.Match[str], check: Check) -> Schema:
    most = _most(check, "x")
    many = ({"type": "array", "items": kind, "minItems": 1, **most} for kind in (_STRING, _TOKEN_IDS))
    return {"anyOf": [{**_STRING, "minLength": 1}, {**_TOKEN_IDS, "minItems": 1}, *many]}


def _items(_: re.Match[str], check: Check) -> Schema:
    return {"anyOf": [{**_STRING, "minLength": 1}, {**_OBJECTS, "minItems": 1, **_most(check, {})}]}


def _scored(_: re.Match[str], check: Check) -> Schema:
    most = _most(check, "x")
    many: list[Schema] = [{"type": "array", "items": _SCORED, "minItems": 1, **most}] if most else []
    return {"anyOf": [*_SCORED["anyOf"], *many]}


def _same(schema: Schema) -> Callable[[re.Match[str], Check], Schema]:
    return lambda _, __: schema


_READINGS: tuple[tuple[str, Callable[[re.Match[str], Check], Schema]], ...] = (
    (r"must be true or false", _same({"type": "boolean"})),
    (rf"must be an integer from ({_NUMBER}) to ({_NUMBER})", _range("integer", int)),
    (rf"must be a number from ({_NUMBER}) to ({_NUMBER})", _range("number", float)),
    (r"must be a string", _string),
    (r"must be one of (.+)", _one_of),
    (r"must be a string or an object", _same({"type": ["string", "object"]})),
    (r"must be an object.*", _same({"type": "object"})),
    (r"must be an array of token ids", _same(_TOKEN_IDS)),
    (r"must be an array of \w+ objects", _array({}, items={"type": "object"})),
    (r"must be a non-empty array of messages", _array({}, items=_MESSAGE, minItems=1)),
    (r"must be a string or an array of strings", _text_or_many),
    (r"must be a string, an array of strings, an array of token ids, or an array of such arrays", _inputs),
    (r"must be a string or a non-empty array of items", _items),
    (r"must be a string, or an object with content: .*", _scored),
    (r"content must be a string or an array of parts", _same({"anyOf": [_STRING, _OBJECTS]})),
)
