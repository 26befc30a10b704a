"""A YAML document as a tree with locations, and the meaning of plain scalars in YAML 1.2.

Only true and false are booleans; dates, `.nan`, `.inf`, octals and hexadecimals stay text. Neighbours: `yaml_parse`
builds trees from hostile text, `validation` uses them to locate problems.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from functions.api.problems import SourceLocation

Scalar = str | int | float | bool | None


@dataclass(slots=True)
class Node:
    """A mapping, a list or a scalar. `nodes`, `chars` (of text) and `height` are those of the whole subtree."""

    place: SourceLocation
    value: "dict[str, Node] | list[Node] | Scalar"
    key_places: dict[str, SourceLocation] = field(default_factory=dict)  # in a mapping: location of each key
    nodes: int = 1
    height: int = 1
    chars: int = 0
    text_offset: int | None = None  # for a scalar written literally: offset of its text from `place`

    def plain(self) -> Any:
        """Return the subtree as dicts, lists and scalars, without locations. Recursion is safe: the parser bounds the
        depth."""
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
        """Return the node at the path below this one, or None."""
        node: Node | None = self
        for part in path:
            node = node.child(part) if node is not None else None
        return node

    def locate(self, path: Sequence[str | int]) -> SourceLocation:
        """Return the location of the path's value, or of its nearest existing ancestor's key or value."""
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
        """Return the location of a character of the path's text; the text's own location if it is not written
        literally."""
        node, place = self.at(path), self.locate(path)
        if node is None or node.text_offset is None:
            return place
        return SourceLocation(place.file, place.line, place.column + node.text_offset + offset_chars)

    def locate_key(self, path: Sequence[str | int]) -> SourceLocation:
        """Return the location of the path's last key; if it is missing, of the mapping that should have it, and for a
        list item of the item."""
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
