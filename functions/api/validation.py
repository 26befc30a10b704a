"""Validation of a document against its kind: pydantic's errors with locations, allowed values and near misses.

Validation runs on JSON, where pydantic's strict mode matches the YAML: a list is a list, text is text.
"""

from collections.abc import Iterator
from typing import Any, TypeVar, get_args

import orjson
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from functions.api.expressions import ExpressionInvalid
from functions.api.problems import MAX_PROBLEMS, Problem, near_miss, path_text, shown
from functions.api.yaml_documents import Written
from functions.api.yaml_tree import Node

Kind = TypeVar("Kind", bound=BaseModel)
Path = tuple[str | int, ...]

_WANTED = {
    "string_type": "text (put it in quotes)",
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "tuple_type": "a list",
    "list_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "int_from_float": "a whole number",
    "finite_number": "a number",
    "greater_than": "more than {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
    "too_short": "a list of at least {min_length}",
    "too_long": "a list of at most {max_length}",
    "string_too_short": "at least {min_length} characters",
    "string_too_long": "at most {max_length} characters",
}
# Problems appear in logs and status: in place of a hash, the key itself may have been written by mistake.
_MAY_BE_SECRET = (("hmacSha256",),)


def validate(kind: type[Kind], written: Written) -> tuple[Kind | None, list[Problem]]:
    """Return the document as an object of its kind and no problems, or None and the problems that prevent it (at most
    MAX_PROBLEMS)."""
    try:
        return kind.model_validate_json(orjson.dumps(written.value)), []
    except ValidationError as error:
        tree = written.document.tree()
        errors = error.errors(include_url=False)[:MAX_PROBLEMS]
        return None, [_problem(kind, tree, details) for details in _without_echoes(kind, errors)]
    except (orjson.JSONEncodeError, UnicodeEncodeError) as error:  # a lone surrogate, written as an escape
        return None, [Problem(written.document.place, "", f"holds text that is not Unicode: {error}")]


def _without_echoes(kind: type[BaseModel], errors: list[ErrorDetails]) -> Iterator[ErrorDetails]:
    """Yield the errors so that one mistake is reported once: a misspelt key is not also missing, a list with a wrong
    item not also too short."""
    meant = {
        (*details["loc"][:-1], name)
        for details in errors
        if details["type"] == "extra_forbidden"
        for name in _keys_at(kind, details["loc"][:-1])
        if near_miss(details["loc"][-1], [name])
    }
    above = {details["loc"][:-1] for details in errors}
    for details in errors:
        missing = details["type"] == "missing" and details["loc"] in meant
        too_short = details["type"] == "too_short" and details["loc"] in above
        if not missing and not too_short:
            yield details


def _problem(kind: type[BaseModel], tree: Node, details: ErrorDetails) -> Problem:
    # pydantic marks an error about a mapping's key with a last part "[key]", after the key itself.
    is_key = bool(details["loc"]) and details["loc"][-1] == "[key]"
    path: Path = details["loc"][:-1] if is_key else details["loc"]
    found = path[-1] if is_key else details["input"]
    cause = details.get("ctx", {}).get("error")
    if isinstance(cause, ExpressionInvalid):
        place = tree.locate_character(path, cause.offset_chars)
        return Problem(place, path_text(path), f"{cause}; in {shown(found)}")
    at_key = is_key or details["type"] == "extra_forbidden"
    place = tree.locate_key(path) if at_key else tree.locate(path)
    return Problem(place, path_text(path), _message(kind, path, details, found))


def _message(kind: type[BaseModel], path: Path, details: ErrorDetails, found: object) -> str:
    context: dict[str, Any] = details.get("ctx", {})
    match details["type"]:
        case "extra_forbidden":
            allowed = _keys_at(kind, path[:-1])
            return f"unknown key; allowed: {', '.join(allowed)}{near_miss(path[-1], allowed)}"
        case "missing":
            return "is required, and not there"
        case "literal_error":
            choices = _literals(str(context["expected"]))
            return f"found {shown(found)}; allowed: {', '.join(choices)}{near_miss(found, choices)}"
        case "value_error":
            quoted = "a value that may be a secret" if path[-1:] in _MAY_BE_SECRET else shown(found)
            return f"found {quoted}; allowed: {context['error']}"
        case type_ if type_ in _WANTED:
            return f"found {shown(found)}; allowed: {_WANTED[type_].format(**context)}"
        case _:
            return f"found {shown(found)}; {details['msg'][:1].lower()}{details['msg'][1:]}"


def _literals(expected: str) -> list[str]:
    """Parse pydantic's text `'a', 'b' or 'c'` to a list of the literals."""
    return [part.strip().strip("'") for part in expected.replace(" or ", ", ").split(", ")]


def _keys_at(kind: type[BaseModel], path: Path) -> list[str]:
    """Return the keys that the model at `path` inside `kind` allows, in the order of their declaration."""
    models = [kind]
    for part in path:
        if isinstance(part, int):
            continue  # list items have the model in the list's annotation
        annotations = [field.annotation for model in models for name, field in _fields(model) if name == part]
        models = [model for annotation in annotations for model in _models_in(annotation)]
    return [name for model in models for name, _ in _fields(model)]


def _fields(model: type[BaseModel]) -> list[tuple[str, Any]]:
    return [(field.alias or name, field) for name, field in model.model_fields.items()]


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for argument in get_args(annotation) for model in _models_in(argument)]
