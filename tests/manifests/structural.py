"""Strict validation with a CRD's structural schema: fields that an API server would prune silently are errors.

findings = list(unknown_or_wrong(schema, document))
"""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator

Schema = dict[str, Any]

_KUBERNETES_OWN = {"apiVersion": {"type": "string"}, "kind": {"type": "string"}, "metadata": {"type": "object"}}
_DROPPED = {"format", "description", "default", "example"}


def strict(schema: Schema) -> Schema:
    """Return the equivalent JSON Schema without additional properties."""
    if schema.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "string"]}
    kept = {key: value for key, value in schema.items() if not key.startswith("x-kubernetes-") and key not in _DROPPED}
    if "properties" in schema:
        kept["properties"] = {name: strict(each) for name, each in schema["properties"].items()}
        if schema.get("x-kubernetes-embedded-resource"):
            kept["properties"] |= _KUBERNETES_OWN
    if isinstance(schema.get("items"), dict):
        kept["items"] = strict(schema["items"])
    if isinstance(schema.get("additionalProperties"), dict):
        kept["additionalProperties"] = strict(schema["additionalProperties"])
    elif schema.get("type") == "object" and not schema.get("x-kubernetes-preserve-unknown-fields"):
        kept.setdefault("additionalProperties", False)
    for bound in (
        "Minimum",
        "Maximum",
    ):  # OpenAPI 3.0: a boolean beside the bound; JSON Schema: a keyword of its own
        if kept.pop(f"exclusive{bound}", False):
            kept[f"exclusive{bound}"] = kept.pop(bound.lower())
    if kept.pop("nullable", False) and "type" in kept:
        kept["type"] = [kept["type"], "null"]
    return kept


@cache
def validators(folder: Path) -> dict[tuple[str, str], Draft202012Validator]:
    """Return a strict validator per (apiVersion, kind) of every CRD in the folder."""
    found: dict[tuple[str, str], Draft202012Validator] = {}
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    for file in sorted(folder.glob("*.yaml")):
        if not file.name.startswith(("serving.", "networking.internal.", "shoal.dev_")) or "llminference" in file.name:
            continue  # the other CRDs are large and not used by any manifest
        for crd in yaml.load_all(file.read_bytes(), Loader=loader):
            if crd and crd.get("kind") == "CustomResourceDefinition":
                found |= dict(_of_crd(crd))
    return found


def unknown_or_wrong(validator: Draft202012Validator, document: dict[str, Any]) -> Iterator[str]:
    for error in validator.iter_errors(document):
        yield f"{'.'.join(str(each) for each in error.absolute_path) or '(top)'}: {error.message[:300]}"


def _of_crd(crd: dict[str, Any]) -> Iterator[tuple[tuple[str, str], Draft202012Validator]]:
    spec = crd["spec"]
    for version in spec["versions"]:
        if not version["served"]:
            continue
        schema = version["schema"]["openAPIV3Schema"]
        schema = strict(schema)
        schema["properties"] |= _KUBERNETES_OWN
        yield (f"{spec['group']}/{version['name']}", spec["names"]["kind"]), Draft202012Validator(schema)
