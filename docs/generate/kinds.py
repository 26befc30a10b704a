"""The YAML kinds: every field of every kind, from the JSON Schema that editors get."""

from collections.abc import Iterator
from typing import Any

from docs.generate.markdown import code, number, page, sentence, table
from functions.api.kinds.catalogue import KINDS
from functions.api.schema.editor import DEFINITIONS, kind_schema

Schema = dict[str, Any]

_ENDLESS = 10**15  # a bound that only keeps arithmetic sound
_OF_KUBERNETES = ("metadata.namespace", "metadata.labels", "metadata.annotations", "apiVersion", "kind")
_ABOUT = (
    "Every field. Each kind by example, the expressions that policies may hold, and what is judged of objects together "
    "are in [The YAML kinds](../explanation/kinds.md). Unknown keys are errors. `shoal schema` prints the same as JSON "
    "Schema, `shoal schema --crd` as CustomResourceDefinitions."
)


def kinds_page() -> str:
    return page("Kinds", _ABOUT, *(_section(version, name) for version, name in KINDS))


def _section(version: str, name: str) -> str:
    schema = kind_schema(name)
    head = f"## {name}\n\n`apiVersion: {version}`. {sentence(_first(schema.get('description', '')))}"
    left_out = {code(field) for field in _OF_KUBERNETES} | {code("metadata")}
    rows = [row for row in _rows(schema, schema[DEFINITIONS], "") if row[0] not in left_out]
    return f"{head}\n\n" + table(("field", "takes", "default", "meaning"), rows)


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
    """An object's own fields, or those of an array's or a map's entries, with how the path goes on."""
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
