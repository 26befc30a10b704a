"""An object and the document that declared it, so that whatever is found later can still name file and line."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

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


def of_kind(objects: "Iterable[Declared[Any]]", kind: type[Value]) -> "list[Declared[Value]]":
    """Those whose value is of one kind."""
    return [declared for declared in objects if isinstance(declared.value, kind)]
