"""JSON Schema for editors: one document for all kinds, as the YAML language server expects it, or one kind's own.

It is draft 7, which editors support best. The key `kind` selects the kind's schema with if and then, so that an
editor reports problems with that kind only. Documents of other kinds are ignored.

pydantic's schema is cleaned first. Titles that repeat the key are removed, and so is `null` beside a type: a key
without a value is left out, in YAML as in Kubernetes, where a null would need `nullable`. A default of null is
removed with it.
"""

from typing import Any

from pydantic import BaseModel

from functions.api.kinds.base import API_VERSION
from functions.api.kinds.catalogue import KINDS

Schema = dict[str, Any]

DEFINITIONS = "definitions"


def tidy_schema(kind: type[BaseModel]) -> Schema:
    """Return the kind's JSON schema, tidied for editors, with its parts in `definitions`."""
    schema = kind.model_json_schema(by_alias=True, ref_template=f"#/{DEFINITIONS}/{{model}}")
    definitions = schema.pop("$defs", {})
    return {**_tidy(schema), DEFINITIONS: {name: _tidy(part) for name, part in definitions.items()}}


def inlined(schema: Schema) -> Schema:
    """Return the same schema with each reference replaced by its definition. It terminates, since no kind contains
    itself."""
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
    """Return the schema with `anyOf: [X, null]` replaced by X; keys beside it, such as a description, stay."""
    choices = node.get("anyOf")
    if not isinstance(choices, list) or {"type": "null"} not in choices:
        return node
    kept = [choice for choice in choices if choice != {"type": "null"}]
    beside = {key: value for key, value in node.items() if key != "anyOf"}
    return {**kept[0], **beside} if len(kept) == 1 else {**beside, "anyOf": kept}


DRAFT = "http://json-schema.org/draft-07/schema#"


def editor_schema() -> Schema:
    """Return the schema for every YAML file of a configuration, whichever kinds it has."""
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
        "description": f"The kinds of {API_VERSION}, and the parts of KServe's InferenceService that shoal reads.",
        "type": "object",
        "properties": {
            "apiVersion": {"type": "string", "examples": sorted({version for version, _ in KINDS})},
            "kind": {"type": "string", "examples": [name for _, name in KINDS]},
        },
        "allOf": choices,
        DEFINITIONS: definitions,
    }


def kind_schema(name: str) -> Schema:
    """Return the schema for files of one kind only; KeyError if there is no such kind."""
    kind = {name: kind for (_, name), kind in KINDS.items()}[name]
    return {"$schema": DRAFT, "title": name, **tidy_schema(kind)}


def _ref(name: str) -> str:
    return f"#/{DEFINITIONS}/{name}"


def _renamed(node: Any, kind: str) -> Any:
    """Return the node with its references prefixed with the kind, because two kinds may have parts with the same
    name."""
    if isinstance(node, list):
        return [_renamed(item, kind) for item in node]
    if not isinstance(node, dict):
        return node
    return {
        key: _ref(f"{kind}.{value.rpartition('/')[2]}") if key == "$ref" else _renamed(value, kind)
        for key, value in node.items()
    }
