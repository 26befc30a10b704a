"""JSON Schema for editors: one document for all kinds, as the YAML language server takes it, or one kind's own.

Draft 7, which editors know best. The kind is told by `kind`, with if and then, so that an editor complains about the
kind that was meant and not about all of them; what is none of ours is left alone.
"""

from typing import Any

from functions.api.kinds.base import API_VERSION
from functions.api.kinds.catalogue import KINDS
from functions.api.schema.tidy import DEFINITIONS, Schema, tidy_schema

DRAFT = "http://json-schema.org/draft-07/schema#"


def editor_schema() -> Schema:
    """For every YAML file of a configuration, whichever kinds are in it."""
    definitions: Schema = {}
    choices: list[Schema] = []
    for (version, name), kind in KINDS.items():
        schema = tidy_schema(kind)
        for part, content in schema.pop(DEFINITIONS).items():
            definitions[f"{name}.{part}"] = _renamed(content, name)
        definitions[name] = _renamed(schema, name)
        wanted = {"kind": {"const": name}, "apiVersion": {"const": version}}
        choices.append({"if": {"properties": wanted, "required": list(wanted)}, "then": {"$ref": _ref(name)}})
    return {
        "$schema": DRAFT,
        "title": "shoal",
        "description": f"The kinds of {API_VERSION}, and KServe's InferenceService as far as shoal reads it.",
        "type": "object",
        "properties": {
            "apiVersion": {"type": "string", "examples": sorted({version for version, _ in KINDS})},
            "kind": {"type": "string", "examples": [name for _, name in KINDS]},
        },
        "allOf": choices,
        DEFINITIONS: definitions,
    }


def kind_schema(name: str) -> Schema:
    """For files that hold one kind only; KeyError where there is no such kind."""
    kind = {name: kind for (_, name), kind in KINDS.items()}[name]
    return {"$schema": DRAFT, "title": name, **tidy_schema(kind)}


def _ref(name: str) -> str:
    return f"#/{DEFINITIONS}/{name}"


def _renamed(node: Any, kind: str) -> Any:
    """Two kinds may have parts of one name: each part is its kind's own."""
    if isinstance(node, list):
        return [_renamed(item, kind) for item in node]
    if not isinstance(node, dict):
        return node
    return {
        key: _ref(f"{kind}.{value.rpartition('/')[2]}") if key == "$ref" else _renamed(value, kind)
        for key, value in node.items()
    }
