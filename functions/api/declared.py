"""An object and the document that declared it, so that whatever is found later can still name file and line."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from functions.api.problems import Place, Problem, path_text
from functions.api.yaml_tree import Node

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Declared(Generic[Value]):
    value: Value
    document: Node

    @property
    def place(self) -> Place:
        return self.document.place

    @property
    def source(self) -> str:
        """`policies/tenants.yaml:12`"""
        return f"{self.place.file}:{self.place.line}"

    def problem(self, path: Sequence[str | int], message: str) -> Problem:
        """A problem with the value at `path` of the document."""
        return Problem(self.document.locate(path), path_text(path), message)


def of_kind(objects: "Iterable[Declared[Any]]", kind: type[Value]) -> "list[Declared[Value]]":
    """Those whose value is of one kind."""
    return [declared for declared in objects if isinstance(declared.value, kind)]
