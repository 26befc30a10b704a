"""An object and the document that declared it, so that later problems can name file and line."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from functions.api.kinds.autoscaling_policy import AutoscalingPolicy
from functions.api.problems import Problem, SourceLocation
from functions.api.snapshot_entries import AnyEntry
from functions.api.yaml_documents import Document

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Declared(Generic[Value]):
    value: Value
    document: Document

    @property
    def place(self) -> SourceLocation:
        return self.document.place

    @property
    def source(self) -> str:
        """Location such as `policies/tenants.yaml:12`; an object that no file declared has its name: `tenants/acme`."""
        return f"{self.document.file}:{self.document.line}" if self.document.line else self.document.file

    def problem(self, path: Sequence[str | int], message: str) -> Problem:
        """Return a problem with the value at `path` of the document, with its location."""
        return self.document.problem(path, message)


@dataclass(frozen=True, slots=True)
class Accepted(Declared[Value]):
    """The last accepted form of an object that is wrong now. `entries` are what it was compiled to then, and go into
    the snapshot unchanged. `value` has only its name and references."""

    entries: tuple[AnyEntry, ...] = ()


def policy_minima(objects: "Iterable[Declared[Any]]") -> dict[str, int]:
    """Return `replicas.min` of the AutoscalingPolicy of each pool that has one; if two have one pool, the first's."""
    found: dict[str, int] = {}
    for policy in of_kind(objects, AutoscalingPolicy):
        found.setdefault(policy.value.spec.pool, policy.value.spec.replicas.min)
    return found


def of_kind(objects: "Iterable[Declared[Any]]", kind: type[Value]) -> "list[Declared[Value]]":
    """Return the declared objects whose value is of one kind, in their order."""
    return [declared for declared in objects if isinstance(declared.value, kind)]
