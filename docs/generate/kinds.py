"""The YAML kinds: every field of every kind, from the JSON Schema for editors. Each kind has a page."""

import re
from collections.abc import Iterator
from typing import Any

from docs.generate.markdown import code, number, page, sentence, table
from functions.api.kinds.catalogue import KINDS
from functions.api.schema.editor import DEFINITIONS, kind_schema

Schema = dict[str, Any]

_ENDLESS = 10**15  # bounds beyond this only protect arithmetic and are not shown
_OF_KUBERNETES = ("metadata.namespace", "metadata.labels", "metadata.annotations", "apiVersion", "kind")
_ABOUT = (
    "This page is for authors of shoal's YAML. Each kind has a page that lists every field with its type, default and "
    "meaning. An unknown field is an error, except in an InferenceService.\n\n"
    "[The YAML kinds](../explanation/kinds.md) explains each kind by example, the expressions in policies and the "
    "checks across objects. `shoal schema` prints all fields as JSON Schema, `shoal schema --crd` as "
    "CustomResourceDefinitions."
)
_OF_KSERVE = (
    "KServe's kind; with the label `shoal.dev/pool` it is a pool. These are the fields that shoal reads; others are "
    "KServe's."
)


def kinds_files() -> dict[str, str]:
    """Return the list of kinds and a page for each kind."""
    rows = [
        (f"[{name}]({file_of(name)})", code(version), _meaning(name), str(len(_fields(name))))
        for version, name in KINDS
    ]
    index = page("Kinds", _ABOUT, table(("kind", "apiVersion", "is", "fields"), rows))
    return {"kinds.md": index, **{file_of(name): _kind_page(version, name) for version, name in KINDS}}


def file_of(name: str) -> str:
    """Return the path of the kind's page below docs/reference: kinds/quota-policy.md."""
    return f"kinds/{re.sub(r'(?<=[a-z])(?=[A-Z])', '-', name).lower()}.md"


def _kind_page(version: str, name: str) -> str:
    about = f"{_meaning(name)}\n\n`apiVersion: {version}`, `kind: {name}`; all kinds are in [Kinds](../kinds.md)."
    return page(name, about, table(("field", "takes", "default", "meaning"), _fields(name)))


def _meaning(name: str) -> str:
    return sentence(_first(kind_schema(name).get("description", _OF_KSERVE)))


def _fields(name: str) -> list[tuple[str, str, str, str]]:
    schema = kind_schema(name)
    left_out = {code(field) for field in _OF_KUBERNETES} | {code("metadata")}
    return [row for row in _rows(schema, schema[DEFINITIONS], "") if row[0] not in left_out]


def _first(text: str) -> str:
    return text.partition("\n\n")[0]


def _rows(schema: Schema, parts: Schema, prefix: str) -> Iterator[tuple[str, str, str, str]]:
    needed = set(schema.get("required", ()))
    for name, given in schema.get("properties", {}).items():
        field = _resolved(given, parts)
        inner, suffix = _inner(field, parts)
        default = "**required**" if name in needed else _default(field)
        if inner.get("properties"):
            if field.get("description"):
                yield code(f"{prefix}{name}{suffix}"), "", default, sentence(_first(field["description"]))
            yield from _rows(inner, parts, f"{prefix}{name}{suffix}.")
        else:
            yield code(f"{prefix}{name}"), _kind(field, parts), default, sentence(_first(field.get("description", "")))


def _resolved(field: Schema, parts: Schema) -> Schema:
    if "$ref" in field:
        return _resolved(parts[field["$ref"].rpartition("/")[2]], parts) | {
            key: value for key, value in field.items() if key != "$ref"
        }
    return field


def _inner(field: Schema, parts: Schema) -> tuple[Schema, str]:
    """Return the object, or the entry of an array or a map, that holds the fields, and the suffix of its path."""
    if field.get("type") == "array":
        return _resolved(field.get("items", {}), parts), "[]"
    more = field.get("additionalProperties")
    if isinstance(more, dict) and not field.get("properties"):
        return _resolved(more, parts), ".*"
    return field, ""


def _default(field: Schema) -> str:
    value = field.get("default")
    if value is None or isinstance(value, dict):
        return ""
    return code(str(value).lower() if isinstance(value, bool) else str(value))


def _kind(field: Schema, parts: Schema) -> str:
    field = _resolved(field, parts)
    if "const" in field:
        return code(str(field["const"]))
    if "enum" in field:
        return "one of " + ", ".join(code(str(one)) for one in field["enum"])
    for key in ("anyOf", "oneOf"):
        if key in field:
            return ", or ".join(dict.fromkeys(_kind(one, parts) for one in field[key]))
    if field.get("type") == "array":
        return f"list of {_kind(field.get('items', {}), parts)}"
    if field.get("type") == "object" and isinstance(field.get("additionalProperties"), dict):
        return f"map to {_kind(field['additionalProperties'], parts)}"
    patterns = field.get("patternProperties")
    if isinstance(patterns, dict):
        return f"map to {_kind(next(iter(patterns.values())), parts)}"
    return _scalar(field)


def _scalar(field: Schema) -> str:
    named = {"string": "text", "integer": "whole number", "boolean": "true or false"}
    plain = str(field.get("type", "anything"))
    kind = named.get(plain, plain)
    bounds = [
        f"{words} {number(field[key])}"
        for key, words in (
            ("minimum", "at least"),
            ("exclusiveMinimum", "above"),
            ("maximum", "at most"),
            ("exclusiveMaximum", "below"),
            ("maxLength", "characters at most"),
        )
        if isinstance(field.get(key), int | float) and abs(field[key]) < _ENDLESS
    ]
    return ", ".join((kind, *bounds))
