"""pydantic's JSON Schema, without what nobody but pydantic needs.

Titles that repeat the key go, and so does `null` beside a type: a key without a value is left out, in YAML as in
Kubernetes, where a null would need `nullable`. A default of null says nothing and goes with it.
"""

from typing import Any

from pydantic import BaseModel

Schema = dict[str, Any]

DEFINITIONS = "definitions"


def tidy_schema(kind: type[BaseModel]) -> Schema:
    """The kind's schema, with its parts in `definitions`."""
    schema = kind.model_json_schema(by_alias=True, ref_template=f"#/{DEFINITIONS}/{{model}}")
    definitions = schema.pop("$defs", {})
    return {**_tidy(schema), DEFINITIONS: {name: _tidy(part) for name, part in definitions.items()}}


def inlined(schema: Schema) -> Schema:
    """The same without references. It ends, since no kind contains itself."""
    definitions = schema.get(DEFINITIONS, {})
    rest = {key: value for key, value in schema.items() if key != DEFINITIONS}
    result: Schema = _inlined(rest, definitions)
    return result


def _inlined(node: Any, definitions: Schema) -> Any:
    if isinstance(node, list):
        return [_inlined(item, definitions) for item in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        target = definitions[node["$ref"].rpartition("/")[2]]
        beside = {key: value for key, value in node.items() if key != "$ref"}
        return _inlined({**target, **beside}, definitions)
    return {key: _inlined(value, definitions) for key, value in node.items()}


def _tidy(node: Any) -> Any:
    if isinstance(node, list):
        return [_tidy(item) for item in node]
    if not isinstance(node, dict):
        return node
    node = _without_null(node)
    return {
        key: {name: _tidy(part) for name, part in value.items()} if key == "properties" else _tidy(value)
        for key, value in node.items()
        if not (key == "title" and isinstance(value, str)) and not (key == "default" and value in (None, {}, []))
    }


def _without_null(node: Schema) -> Schema:
    """`anyOf: [X, null]` is X; what stands beside it, such as a description, stays."""
    choices = node.get("anyOf")
    if not isinstance(choices, list) or {"type": "null"} not in choices:
        return node
    kept = [choice for choice in choices if choice != {"type": "null"}]
    beside = {key: value for key, value in node.items() if key != "anyOf"}
    return {**kept[0], **beside} if len(kept) == 1 else {**beside, "anyOf": kept}
