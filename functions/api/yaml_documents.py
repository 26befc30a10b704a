"""Documents of a file: plain values for validation, each with its source text.

Locations are not stored, since they are rarely needed and a tree with locations is 30 times the size of its text.
To locate a problem, that document is parsed again (`Document.tree`). `yaml_fast` reads plain files, `yaml_parse`
everything else and every error (docs/decisions/0024).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from functions.api import yaml_fast, yaml_parse
from functions.api.problems import Problem, SourceLocation, path_text
from functions.api.yaml_events import YamlInvalid, decoded
from functions.api.yaml_tree import Node


@dataclass(frozen=True, slots=True)
class Document:
    """Location and text of a document, which suffice to locate problems in it later."""

    file: str
    line: int  # line of the root value
    column: int
    first_line: int  # first line of the text
    text: str

    @property
    def place(self) -> SourceLocation:
        return SourceLocation(self.file, self.line, self.column)

    def tree(self) -> Node:
        """Return the document with all locations. Takes about 1 ms, for a full file seconds; the result is cached."""
        return _tree(self)

    def locate(self, path: Sequence[str | int]) -> SourceLocation:
        return self.tree().locate(path)

    def problem(self, path: Sequence[str | int], message: str) -> Problem:
        """Return a problem with the value at `path`, with its location in the file."""
        return Problem(self.locate(path), path_text(path), message)


@lru_cache(maxsize=2)  # most problems are in one document or in two that conflict, and trees are large
def _tree(document: Document) -> Node:
    parsed = yaml_parse.parse_text(document.file, document.text, document.first_line)
    return parsed.documents[0].root if parsed.documents else Node(document.place, None)


@dataclass(frozen=True, slots=True)
class Written:
    """One document: its value and its location."""

    value: Any
    document: Document


@dataclass(frozen=True, slots=True)
class FileRead:
    """The readable documents of one file, without empty ones, and the problems of the file."""

    documents: tuple[Written, ...]
    problems: tuple[Problem, ...] = ()


def read_documents(file: str, content: bytes) -> FileRead:
    try:
        text = decoded(file, content)
    except YamlInvalid as error:
        return FileRead((), (error.problem,))
    fast = yaml_fast.read_fast(text)
    if fast is not None:
        return FileRead(
            tuple(
                Written(it.value, Document(file, it.line, it.column, it.first_line, text[it.start : it.end]))
                for it in fast
            )
        )
    parsed = yaml_parse.parse_text(file, text)
    return FileRead(
        tuple(
            Written(
                it.root.plain(),
                Document(file, it.root.place.line, it.root.place.column, it.first_line, text[it.start : it.end]),
            )
            for it in parsed.documents
        ),
        parsed.problems,
    )
