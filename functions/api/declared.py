"""An object and the document that declared it, so that whatever is found later can still name file and line."""

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
        """`policies/tenants.yaml:12`; of an object that no file declared, its name: `tenants/acme`."""
        return f"{self.document.file}:{self.document.line}" if self.document.line else self.document.file

    def problem(self, path: Sequence[str | int], message: str) -> Problem:
        """A problem with the value at `path` of the document."""
        return self.document.problem(path, message)


@dataclass(frozen=True, slots=True)
class Accepted(Declared[Value]):
    """An object as it was last accepted, standing in for one that is wrong now. `entries` are what it became then, and
    go into the snapshot as they are; `value` has only its name and what it refers to."""

    entries: tuple[AnyEntry, ...] = ()


def policy_minima(objects: "Iterable[Declared[Any]]") -> dict[str, int]:
    """By pool, what an AutoscalingPolicy begins with; of two for one pool, the first's."""
    found: dict[str, int] = {}
    for policy in of_kind(objects, AutoscalingPolicy):
        found.setdefault(policy.value.spec.pool, policy.value.spec.replicas.min)
    return found


def of_kind(objects: "Iterable[Declared[Any]]", kind: type[Value]) -> "list[Declared[Value]]":
    """Those whose value is of one kind."""
    return [declared for declared in objects if isinstance(declared.value, kind)]
