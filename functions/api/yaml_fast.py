"""Fast conversion of YAML text to plain values, for plain files only.

An event costs 1 us with libyaml and 30 us with ruamel, and most files are plain. This reader accepts a file only if
its meaning is certain: no tabs, directives, anchors, tags, block or multi-line scalars, duplicate keys, or values
near a limit. Otherwise it returns None, and `yaml_parse` reads the whole file and reports its errors.

Whatever this reader accepts, it reads exactly like `yaml_parse` (test_the_fast_reader_never_disagrees).
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import yaml

from functions.api.yaml_tree import resolved

MAX_DEPTH = 32
MAX_VALUES = 50_000  # per document; half of what yaml_parse allows, including keys
MAX_DOCUMENTS = 10_000

# Anything but newlines and characters printed in one column (so no tabs, other line ends or byte order marks);
# directives; and ends of documents, of which libyaml accepts several in a row and ruamel one.
_SOUND = r"\n\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff"
_NOT_PLAIN = re.compile(rf"[^{_SOUND}]|^%|^\.\.\.", re.MULTILINE)
_PLAIN_OR_QUOTED = frozenset({None, "", "'", '"'})
_LOADER: Any = getattr(yaml, "CLoader", None)  # absent if PyYAML was built without libyaml


@dataclass(frozen=True, slots=True)
class FastDocument:
    """A document: `value` in dicts, lists and scalars, from `text[start:end]`; its root is at `line` and `column`."""

    value: Any
    start: int
    end: int
    first_line: int  # line of text[start]
    line: int
    column: int


class _NotPlain(Exception):
    """The text needs `yaml_parse`."""


def read_fast(text: str) -> list[FastDocument] | None:
    """Return the documents of a YAML text, without empty ones; None if the text needs `yaml_parse`, as also if it is
    invalid."""
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
    """Build values from events. Recursion is safe: the depth is bounded."""

    def __init__(self, text: str, next_event: Callable[[], Any]) -> None:
        self._text = text
        self._next = next_event
        self._values = 0

    def documents(self) -> list[FastDocument]:
        documents: list[FastDocument] = []
        starts: list[int] = []
        self._next()  # start of the stream
        while type(event := self._next()) is yaml.DocumentStartEvent:
            mark: Any = event.start_mark
            starts.append(self._text.rfind("\n", 0, mark.index) + 1)
            if len(starts) > MAX_DOCUMENTS:
                raise _NotPlain
            self._values = 0
            root = self._next()
            value = self._value(root, 0)
            where: Any = root.start_mark
            self._next()  # end of the document
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
            raise _NotPlain  # a key that is not a scalar
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
