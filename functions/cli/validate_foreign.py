"""Check of InferenceServices against KServe's own schema: keys that the API server would reject or silently drop.

The loader reads only the parts of an InferenceService that shoal needs. With KServe's CRD (`--crds`, a folder with its
CustomResourceDefinitions) every key is checked, including unknown keys, which a server prunes without an error.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft7Validator
from jsonschema.exceptions import ValidationError

from functions.api.declared import Declared
from functions.api.kinds import inference_service
from functions.api.kinds.inference_service import InferenceService
from functions.api.loader import Loaded
from functions.api.problems import MAX_PROBLEMS, Problem, near_miss, path_text, shown
from functions.api.yaml_tree import Node
from functions.cli.refused import CommandRefused

CRD_FILE = "serving.kserve.io_inferenceservices.yaml"
CRD_MAX_BYTES = 16 * 1024 * 1024

Schema = dict[str, Any]


class ForeignSchemas:
    def __init__(self, folder: Path) -> None:
        self._validator = Draft7Validator(_schema(folder / CRD_FILE))

    def problems(self, loaded: Loaded) -> Iterator[Problem]:
        for service in loaded.objects_of(InferenceService):
            yield from self._problems_of(service)

    def _problems_of(self, service: Declared[InferenceService]) -> Iterator[Problem]:
        tree = service.document.tree()
        for count, error in enumerate(self._validator.iter_errors(tree.plain())):
            if count == MAX_PROBLEMS:
                return
            yield from _problems_from_error(tree, error)


def _problems_from_error(tree: Node, error: ValidationError) -> Iterator[Problem]:
    path: list[str | int] = list(error.absolute_path)
    schema: Any = error.schema
    found: Any = error.instance
    match error.validator:
        case "additionalProperties":
            allowed = list(schema["properties"])
            for key in [key for key in found if key not in allowed]:
                message = f"unknown key for KServe; it would be dropped{near_miss(key, allowed)}"
                yield Problem(tree.locate_key([*path, key]), path_text([*path, key]), message)
        case "required":
            # Each missing key has its own error, and only the message names the key: `'name' is a required property`.
            key = next(key for key in schema["required"] if error.message.startswith(f"{key!r} "))
            yield Problem(tree.locate(path), path_text([*path, key]), "is required by KServe, but missing")
        case _:
            message = f"found {shown(found)}; KServe's schema: {_allowed(error)}"
            yield Problem(tree.locate(path), path_text(path), message)


def _allowed(error: ValidationError) -> str:
    value: Any = error.validator_value
    if error.validator == "type":
        return " or ".join(value) if isinstance(value, list) else str(value)
    if error.validator == "enum":
        return ", ".join(map(str, value))
    return f"{error.validator} {shown(value)}"


def _schema(file: Path) -> Schema:
    """Return the schema of the version that shoal reads, closed, so that unknown keys are errors."""
    try:
        if file.stat().st_size > CRD_MAX_BYTES:
            raise CommandRefused(f"{file} has more than {CRD_MAX_BYTES} bytes: it is not KServe's CRD")
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml if available: the file has 2 MB
        document = yaml.load(file.read_bytes(), Loader=loader)  # noqa: S506 - both are safe loaders
    except (OSError, yaml.YAMLError) as error:
        raise CommandRefused(f"{file} cannot be read as KServe's CRD: {error}") from error
    wanted = inference_service.API_VERSION.rpartition("/")[2]
    try:
        versions: list[Mapping[str, Any]] = document["spec"]["versions"]
        schema = next(it["schema"]["openAPIV3Schema"] for it in versions if it["name"] == wanted)
    except (KeyError, TypeError, StopIteration) as error:
        raise CommandRefused(f"{file} is not a CustomResourceDefinition with the version {wanted}") from error
    closed: Schema = _closed(schema)
    return closed


def _closed(node: Any) -> Any:
    """Convert Kubernetes' OpenAPI schema to a closed JSON Schema."""
    if isinstance(node, list):
        return [_closed(item) for item in node]
    if not isinstance(node, dict):
        return node
    closed = {
        key: {name: _closed(part) for name, part in value.items()} if key == "properties" else _closed(value)
        for key, value in node.items()
        if not key.startswith("x-kubernetes-") and key not in {"description", "default", "nullable", "format"}
    }
    if node.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "string"]}
    if node.get("nullable") and isinstance(closed.get("type"), str):
        closed["type"] = [closed["type"], "null"]
    open_ended = node.get("x-kubernetes-preserve-unknown-fields") or node.get("x-kubernetes-embedded-resource")
    if "properties" in closed and "additionalProperties" not in closed and not open_ended:
        closed["additionalProperties"] = False
    return closed
