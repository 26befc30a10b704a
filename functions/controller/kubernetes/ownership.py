"""Who owns which fields of a live object, as `metadata.managedFields` tells.

An owner is a manager's name and its operation: `Apply` declares fields for as long as it applies, `Update` set them
once. Entries of subresources (a controller writing status) own nothing that we would want.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from functions.controller.kubernetes.objects import list_at

Owner = tuple[str, str]  # manager, operation


def owners(live: Mapping[str, Any], *path: str) -> set[Owner]:
    """Who owns the field at the path of keys."""
    return {(manager, operation) for manager, operation, fields in _entries(live) if _has(fields, path)}


def fields_applied_by(live: Mapping[str, Any], manager: str) -> Mapping[str, Any] | None:
    """The set of fields that the manager applies, in the server's own notation; None where it applies nothing."""
    return next((fields for name, operation, fields in _entries(live) if (name, operation) == (manager, "Apply")), None)


def declares(live: Mapping[str, Any], manager: str) -> bool:
    """Whether the manager applies (rather than once updated) anything of the object."""
    return fields_applied_by(live, manager) is not None


def _entries(live: Mapping[str, Any]) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    for entry in list_at(live, "metadata", "managedFields"):
        if isinstance(entry, dict) and not entry.get("subresource"):
            fields = entry.get("fieldsV1")
            yield (
                str(entry.get("manager", "")),
                str(entry.get("operation", "")),
                fields if isinstance(fields, dict) else {},
            )


def _has(fields: Mapping[str, Any], path: tuple[str, ...]) -> bool:
    node: Any = fields
    for part in path:
        node = node.get(f"f:{part}") if isinstance(node, dict) else None
        if node is None:
            return False
    return True
