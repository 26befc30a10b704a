"""A file's documents: plain values to judge, each with the text that it came from.

Places are not kept, since almost nobody asks for them and a tree with places is 30 times its text: whoever must tell a
problem gets the tree of that one document, parsed again (`Document.tree`).

Neighbours: `yaml_fast` reads what is plain, `yaml_parse` everything else and every error (docs/decisions/0024).
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
    """Where a document stands, and its text: everything that is needed to place what is found in it later."""

    file: str
    line: int  # of the root value
    column: int
    first_line: int  # of the text
    text: str

    @property
    def place(self) -> SourceLocation:
        return SourceLocation(self.file, self.line, self.column)

    def tree(self) -> Node:
        """The document with all places. Costs about 1 ms, of a full file seconds; the next path costs nothing."""
        return _tree(self)

    def locate(self, path: Sequence[str | int]) -> SourceLocation:
        return self.tree().locate(path)

    def problem(self, path: Sequence[str | int], message: str) -> Problem:
        """A problem with the value at `path`."""
        return Problem(self.locate(path), path_text(path), message)


@lru_cache(maxsize=2)  # many problems are of one document or of two that disagree, and trees are large
def _tree(document: Document) -> Node:
    parsed = yaml_parse.parse_text(document.file, document.text, document.first_line)
    return parsed.documents[0].root if parsed.documents else Node(document.place, None)


@dataclass(frozen=True, slots=True)
class Written:
    """One document as it was written: its value, and where it stands."""

    value: Any
    document: Document


@dataclass(frozen=True, slots=True)
class FileRead:
    """The documents of one file that could be read, empty ones left out, and what is wrong with it."""

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
