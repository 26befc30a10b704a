"""YAML text to plain values, quickly: what nobody would argue about, and nothing else.

libyaml's events cost 1 us each where ruamel's cost 30, and most files are plain. So this reads a file only if it is
beyond doubt: no tabs, no directives, no anchors, tags, block or multi-line scalars, no key twice, nothing near a
limit. Else it gives up (None) and `yaml_parse` reads the whole file, whose word is law, errors included.

Law: what is read here is exactly what `yaml_parse` would have read (test_the_fast_reader_never_disagrees).
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import yaml

from functions.api.yaml_tree import resolved

MAX_DEPTH = 32
MAX_VALUES = 50_000  # in one document; half of what yaml_parse allows, keys counted
MAX_DOCUMENTS = 10_000

# Anything but newlines and what is printed in one column (so no tabs, other line ends or byte order marks);
# directives; and ends of documents, of which libyaml takes several in a row and ruamel one.
_SOUND = r"\n\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff"
_NOT_PLAIN = re.compile(rf"[^{_SOUND}]|^%|^\.\.\.", re.MULTILINE)
_PLAIN_OR_QUOTED = frozenset({None, "", "'", '"'})
_LOADER: Any = getattr(yaml, "CLoader", None)  # absent where PyYAML was built without libyaml


@dataclass(frozen=True, slots=True)
class FastDocument:
    """`value` in dicts, lists and scalars; it stands in `text[start:end]`, and begins at line and column."""

    value: Any
    start: int
    end: int
    first_line: int  # of text[start]
    line: int
    column: int


class _NotPlain(Exception):
    """Let `yaml_parse` read this."""


def read_fast(text: str) -> list[FastDocument] | None:
    """The documents, empty ones left out; None where the other parser must look."""
    if _LOADER is None or _NOT_PLAIN.search(text):
        return None
    parser = _LOADER(text)
    try:
        return _Reader(text, parser.get_event).documents()
    except (_NotPlain, yaml.YAMLError, ValueError, ArithmeticError):
        return None
    finally:
        parser.dispose()


class _Reader:
    """Events to values. Recursion is safe: the depth is bounded."""

    def __init__(self, text: str, next_event: Callable[[], Any]) -> None:
        self._text = text
        self._next = next_event
        self._values = 0

    def documents(self) -> list[FastDocument]:
        documents: list[FastDocument] = []
        starts: list[int] = []
        self._next()  # the stream's start
        while type(event := self._next()) is yaml.DocumentStartEvent:
            mark: Any = event.start_mark
            starts.append(self._text.rfind("\n", 0, mark.index) + 1)
            if len(starts) > MAX_DOCUMENTS:
                raise _NotPlain
            self._values = 0
            root = self._next()
            value = self._value(root, 0)
            where: Any = root.start_mark
            self._next()  # the document's end
            if value is not None:
                documents.append(FastDocument(value, starts[-1], 0, mark.line + 1, where.line + 1, where.column + 1))
        ends = dict(zip(starts, [*starts[1:], len(self._text)], strict=True))
        return [replace(document, end=ends[document.start]) for document in documents]

    def _value(self, event: Any, depth: int) -> Any:
        kind = type(event)
        if kind is yaml.ScalarEvent:
            return _scalar(event)
        if kind is yaml.AliasEvent or event.anchor is not None or event.tag is not None or depth >= MAX_DEPTH:
            raise _NotPlain
        return self._mapping(depth + 1) if kind is yaml.MappingStartEvent else self._list(depth + 1)

    def _mapping(self, depth: int) -> dict[str, Any]:
        mapping: dict[str, Any] = {}
        while type(event := self._next()) is yaml.ScalarEvent:
            key = _scalar(event)
            if type(key) is not str or key in mapping or key == "<<":
                raise _NotPlain
            mapping[key] = self._value(self._next(), depth)
        if type(event) is not yaml.MappingEndEvent:
            raise _NotPlain  # a key that is no scalar
        self._count(2 * len(mapping))
        return mapping

    def _list(self, depth: int) -> list[Any]:
        items: list[Any] = []
        while type(event := self._next()) is not yaml.SequenceEndEvent:
            items.append(self._value(event, depth))
        self._count(len(items))
        return items

    def _count(self, values: int) -> None:
        self._values += values
        if self._values > MAX_VALUES:
            raise _NotPlain


def _scalar(event: Any) -> Any:
    if event.anchor is not None or event.tag is not None or event.style not in _PLAIN_OR_QUOTED:
        raise _NotPlain
    if event.start_mark.line != event.end_mark.line:
        raise _NotPlain
    return event.value if event.style else resolved(event.value)
