"""A YAML document as a tree that remembers where everything stood, and what its plain scalars mean by YAML 1.2.

Only true and false are booleans; dates, `.nan`, `.inf`, octals and hexadecimals stay text.
Neighbours: `yaml_parse` builds trees out of hostile text, `validation` looks up in them where a problem is.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from functions.api.problems import SourceLocation

Scalar = str | int | float | bool | None


@dataclass(slots=True)
class Node:
    """A mapping, a list or a scalar; `nodes`, `chars` (of text) and `height` are those of the whole subtree."""

    place: SourceLocation
    value: "dict[str, Node] | list[Node] | Scalar"
    key_places: dict[str, SourceLocation] = field(default_factory=dict)  # of a mapping: where each key stands
    nodes: int = 1
    height: int = 1
    chars: int = 0
    text_offset: int | None = None  # of a scalar: how far behind the place its text begins, where it stands as it is

    def plain(self) -> Any:
        """The subtree as dicts, lists and scalars. Recursion is safe: the parser bounds the depth."""
        if isinstance(self.value, dict):
            return {key: child.plain() for key, child in self.value.items()}
        if isinstance(self.value, list):
            return [child.plain() for child in self.value]
        return self.value

    def child(self, part: str | int) -> "Node | None":
        if isinstance(self.value, dict) and isinstance(part, str):
            return self.value.get(part)
        if isinstance(self.value, list) and isinstance(part, int) and 0 <= part < len(self.value):
            return self.value[part]
        return None

    def at(self, path: Sequence[str | int]) -> "Node | None":
        """The node at the path, or None."""
        node: Node | None = self
        for part in path:
            node = node.child(part) if node is not None else None
        return node

    def locate(self, path: Sequence[str | int]) -> SourceLocation:
        """Where the path's value stands; the nearest ancestor's key or value where the path ends early."""
        node, place = self, self.place
        for part in path:
            child = node.child(part)
            if child is None:
                break
            place = node.key_places.get(part, child.place) if isinstance(part, str) else child.place
            node = child
        else:
            return node.place
        return place

    def locate_character(self, path: Sequence[str | int], offset_chars: int) -> SourceLocation:
        """Where a character of the path's text stands; the text's own place where that cannot be told."""
        node, place = self.at(path), self.locate(path)
        if node is None or node.text_offset is None:
            return place
        return SourceLocation(place.file, place.line, place.column + node.text_offset + offset_chars)

    def locate_key(self, path: Sequence[str | int]) -> SourceLocation:
        """Where the path's last key stands."""
        parent = self.at(path[:-1])
        last = path[-1] if path else None
        if parent is None or not isinstance(last, str):
            return self.locate(path)
        return parent.key_places.get(last, parent.place)


TEXT_TAGS = frozenset({"!", "tag:yaml.org,2002:str"})

_INT = re.compile(r"[-+]?(?:0|[1-9][0-9]{0,17})")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]{1,20}|[0-9]{1,20}\.[0-9]{0,20})(?:[eE][-+]?[0-9]{1,2})?")
_BEGIN_NUMBERS = frozenset("+-.0123456789")
_CONSTANTS: dict[str, bool | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}


def resolved(text: str) -> Scalar:
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if text[0] in _BEGIN_NUMBERS:
        if _INT.fullmatch(text):
            return int(text)
        if _FLOAT.fullmatch(text):
            return float(text)
    return text
