"""CustomResourceDefinitions: structural schemas with a status subresource.

The API server requires structural schemas: every value has a type, there are no references, and unknown keys are
pruned rather than rejected (`additionalProperties: false` is not allowed beside properties). The server thus
rejects wrong types, missing keys and values out of bounds. The controller checks rules between several values or
objects and reports them in conditions. Defaults are only in descriptions: written into stored objects, they could
never change again.
"""

from collections.abc import Mapping
from typing import Any

from functions.api.kinds.base import API_VERSION, Metadata
from functions.api.kinds.catalogue import OUR_KINDS, OurObject
from functions.api.schema.editor import Schema, inlined, tidy_schema

# Columns of `kubectl get` for each kind besides its name: its content, conditions and age.


Column = dict[str, str | int]

_OBEYED = ("Obeyed", "string", '.status.conditions[?(@.type=="Obeyed")].status')
_SHOWN: dict[str, tuple[tuple[str, str, str], ...]] = {
    "Tenant": (("Tier", "string", ".spec.tier"), ("Models", "string", ".spec.models"), _OBEYED),
    "Model": (
        ("Id", "string", ".spec.id"),
        ("Type", "string", ".spec.type"),
        ("Base", "string", ".spec.base"),
        ("Stable", "string", ".spec.channels.stable"),
    ),
    "QuotaPolicy": (
        ("Weight", "number", ".spec.weight"),
        ("Requests/min", "integer", ".spec.limits.requestsPerMinute"),
        ("Concurrent", "integer", ".spec.limits.concurrentRequests"),
    ),
    "RoutingPolicy": (
        ("Pools", "string", ".spec.pools"),
        ("Attempts", "integer", ".spec.retry.maxAttempts"),
        _OBEYED,
    ),
    "AdmissionPolicy": (("Pools", "string", ".spec.pools"), ("Queued", "integer", ".spec.maxQueuedTokens")),
    "RolloutPolicy": (
        ("Stages", "string", ".status.stages"),
        ("Min requests", "integer", ".spec.minRequests"),
    ),
    "AutoscalingPolicy": (
        ("Pool", "string", ".spec.pool"),
        ("Min", "integer", ".spec.replicas.min"),
        ("Max", "integer", ".spec.replicas.max"),
        ("Wanted", "integer", ".status.wantedReplicas"),
        ("Live", "integer", ".status.liveReplicas"),
        _OBEYED,
    ),
}

_COUNT = {"type": "integer", "format": "int64"}
# Status fields besides conditions. They make columns for lists of the spec, since a column shows only one value.
_STATUS_FIELDS: dict[str, dict[str, dict[str, str]]] = {
    "RolloutPolicy": {"stages": {"type": "string", "description": "The stages' percentages, in their order."}},
    "AutoscalingPolicy": {
        "wantedReplicas": {**_COUNT, "description": "Replicas that should serve, as the autoscaler decided."},
        "liveReplicas": {**_COUNT, "description": "Replicas that serve, as their heartbeats report."},
    },
}


def printer_columns(kind: str) -> list[Column]:
    ready = '.status.conditions[?(@.type=="Ready")]'
    shown: list[Column] = [{"name": name, "type": type_, "jsonPath": path} for name, type_, path in _SHOWN[kind]]
    return [
        *shown,
        {"name": "Ready", "type": "string", "jsonPath": f"{ready}.status"},
        {"name": "Reason", "type": "string", "jsonPath": f"{ready}.reason", "priority": 1},
        {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
    ]


GROUP, VERSION = API_VERSION.split("/")

_PLURALS = {"Tenant": "tenants", "Model": "models"}
_STATUS_CHOICES = ["True", "False", "Unknown"]


def plural(kind: str) -> str:
    """Return the plural of a kind as in its CRD's name: `QuotaPolicy` as `quotapolicies`."""
    return _PLURALS.get(kind) or kind.lower().removesuffix("y") + "ies"


def file_name(kind: str) -> str:
    return f"{GROUP}_{plural(kind)}.yaml"


def crds() -> dict[str, Schema]:
    """Return the CustomResourceDefinition of every shoal kind by its file's name."""
    return {file_name(kind.__name__): crd(kind) for kind in OUR_KINDS}


def crd(kind: type[OurObject]) -> Schema:
    name = kind.__name__
    version = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "additionalPrinterColumns": printer_columns(name),
        "schema": {"openAPIV3Schema": _whole(kind)},
        "subresources": {"status": {}},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural(name)}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "names": {
                "kind": name,
                "listKind": f"{name}List",
                "plural": plural(name),
                "singular": name.lower(),
                "categories": ["shoal"],
            },
            "scope": "Namespaced",
            "versions": [version],
        },
    }


def _whole(kind: type[OurObject]) -> Schema:
    schema = inlined(tidy_schema(kind))
    properties = schema["properties"]
    metadata: Schema = {"type": "object"}
    name_pattern = properties["metadata"]["properties"]["name"]["pattern"]
    if name_pattern != _pattern_of_any_name():
        metadata["properties"] = {"name": {"type": "string", "pattern": name_pattern}}
    return {
        "description": schema["description"],
        "type": "object",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": metadata,
            "spec": structural(properties["spec"]),
            "status": _status(_STATUS_FIELDS.get(kind.__name__, {})),
        },
    }


def _pattern_of_any_name() -> str:
    """Return the pattern of metadata.name in kinds that add nothing to Kubernetes' own rule."""
    pattern: str = tidy_schema(Metadata)["properties"]["name"]["pattern"]
    return pattern


def structural(node: Schema) -> Schema:
    """Return one value's JSON schema in the form that the API server requires of a CRD."""
    result: Schema = {}
    for key, value in node.items():
        match key:
            case "additionalProperties" if value is False:
                continue
            case "default":
                continue
            case "const":
                result["enum"] = [value]
            case "exclusiveMinimum":
                result |= {"minimum": value, "exclusiveMinimum": True}
            case "exclusiveMaximum":
                result |= {"maximum": value, "exclusiveMaximum": True}
            case "patternProperties":
                result["additionalProperties"] = structural(next(iter(value.values())))
            case "propertyNames":
                continue
            case "properties":
                result["properties"] = {name: structural(part) for name, part in value.items()}
            case "items" | "additionalProperties":
                result[key] = structural(value)
            case _:
                result[key] = value
    return _with_format(_with_default_told(result, node))


def _with_default_told(result: Schema, node: Schema) -> Schema:
    if "default" not in node or isinstance(node["default"], dict):
        return result
    default = _plain_text(node["default"])
    told = " ".join(part for part in (node.get("description"), f"Default: {default}.") if part)
    return {**result, "description": told}


def _plain_text(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else f"{value}"


def _with_format(node: Schema) -> Schema:
    return {**node, "format": "int64"} if node.get("type") == "integer" else node


def _status(fields: Mapping[str, Schema]) -> Schema:
    text: Schema = {"type": "string"}
    condition = {
        "type": "object",
        "required": ["type", "status", "lastTransitionTime", "reason", "message"],
        "properties": {
            "type": text,
            "status": {"type": "string", "enum": _STATUS_CHOICES},
            "reason": text,
            "message": text,
            "lastTransitionTime": {"type": "string", "format": "date-time"},
            "observedGeneration": {"type": "integer", "format": "int64"},
        },
    }
    return {
        "description": "State of the object as the controller reports it; only the controller writes it.",
        "type": "object",
        "properties": {
            "observedGeneration": {"type": "integer", "format": "int64"},
            "conditions": {
                "type": "array",
                "items": condition,
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["type"],
            },
            **fields,
        },
    }
