"""Conversion of YAML text to trees, under hard limits.

The text may be hostile, so nothing here is recursive, and bytes, depth, documents and nodes are counted as they
arrive. An alias counts as everything that it stands for, so an alias bomb is stopped while it is small. All aliases
of a file together have a limit too, which includes long texts. Also rejected: duplicate keys, keys that are not
text, merge keys (`<<`), and every tag but `!!str`.

A problem that leaves the structure clear is collected; any other ends the file. `yaml_events` yields the events,
`yaml_tree` the values of scalars; `yaml_documents` selects the reader of a file.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ruamel.yaml.events import (
    AliasEvent,
    CollectionEndEvent,
    CollectionStartEvent,
    DocumentEndEvent,
    DocumentStartEvent,
    Event,
    MappingStartEvent,
    ScalarEvent,
)

from functions.api.problems import Problem, SourceLocation, shown
from functions.api.yaml_events import YamlInvalid, events, place_of
from functions.api.yaml_tree import TEXT_TAGS, Node, resolved

MAX_DEPTH = 32  # shoal's deepest kind has 6 levels, KServe's about 15
MAX_NODES = 100_000  # per document
MAX_DOCUMENTS = 10_000  # per file
MAX_ALIASED = 100_000  # per file: values that aliases stand for; ALIASED_CHARS characters of text count as one more
ALIASED_CHARS = 32


@dataclass(frozen=True, slots=True)
class ParsedDocument:
    """A tree and its source text: text[start:end], which begins at `first_line`."""

    root: Node
    start: int
    end: int
    first_line: int


@dataclass(frozen=True, slots=True)
class Parsed:
    """The readable documents of one text, without empty ones, and the problems of the text."""

    documents: tuple[ParsedDocument, ...]
    problems: tuple[Problem, ...]


def parse_text(file: str, text: str, first_line: int = 1) -> Parsed:
    """Parse a text into its documents and problems; an error ends the parse, but documents before it count.
    `first_line` is the text's first line in the file."""
    builder = _Builder(file, first_line)
    try:
        for event in events(file, text, first_line):
            builder.feed(event)
    except YamlInvalid as error:
        builder.problems.append(error.problem)
    return Parsed(tuple(_cut(builder, text, first_line)), tuple(builder.problems))


def _cut(builder: "_Builder", text: str, first_line: int) -> Iterator[ParsedDocument]:
    """Yield each document with its whole lines, up to the start of the next one."""
    starts = [text.rfind("\n", 0, mark.index) + 1 for mark in builder.starts]
    ends = [*starts[1:], len(text)]
    for index, root in builder.documents:
        # A byte order mark counts as text, except at the start of the file: a document that begins with one is cut a
        # line end earlier.
        before = 1 if starts[index] and text[starts[index]] == "\ufeff" else 0
        first = builder.starts[index].line + first_line - before
        yield ParsedDocument(root, starts[index] - before, ends[index], first)


@dataclass(slots=True)
class _Open:
    """A collection whose end has not arrived yet."""

    node: Node
    anchor: str | None
    key: str | None = None  # in a mapping: the key that waits for its value


class _Builder:
    def __init__(self, file: str, first_line: int) -> None:
        self.documents: list[tuple[int, Node]] = []  # with the index of its start
        self.starts: list[Any] = []  # ruamel's marks
        self.problems: list[Problem] = []
        self._file = file
        self._first_line = first_line
        self._open: list[_Open] = []
        self._anchors: dict[str, Node | None] = {}  # None while the anchored collection is still open
        self._nodes = 0
        self._stood_for = 0  # values that aliases stand for in the whole file

    def feed(self, event: Event) -> None:
        place = place_of(self._file, event.start_mark, self._first_line)
        match event:
            case DocumentStartEvent():
                self.starts.append(event.start_mark)
                self._anchors, self._nodes = {}, 0
            case DocumentEndEvent():
                if len(self.documents) > MAX_DOCUMENTS:
                    raise YamlInvalid(place, f"more than {MAX_DOCUMENTS} documents; split the file")
            case CollectionStartEvent():
                self._open_collection(event, place)
            case CollectionEndEvent():
                self._end()
            case AliasEvent():
                node = self._aliased(event, place)
                self._add(node, place)
                self._count_aliased(node, place)
            case ScalarEvent():
                self._add(self._scalar(event, place), place)

    def _open_collection(self, event: CollectionStartEvent, place: SourceLocation) -> None:
        self._refuse_tag(event, place)
        if self._awaits_key():
            raise YamlInvalid(place, "a key must be text; found a collection")
        if len(self._open) >= MAX_DEPTH:
            raise YamlInvalid(place, f"nested deeper than {MAX_DEPTH} levels")
        self._count(1, place)
        if event.anchor is not None:
            self._anchors[event.anchor] = None
        empty: dict[str, Node] | list[Node] = {} if isinstance(event, MappingStartEvent) else []
        self._open.append(_Open(Node(place, empty), event.anchor))

    def _end(self) -> None:
        closed = self._open.pop()
        if closed.anchor is not None:
            self._anchors[closed.anchor] = closed.node
        self._attach(closed.node)

    def _add(self, node: Node, place: SourceLocation) -> None:
        """Add a scalar or an alias: as a key if one is expected, else as a value."""
        self._count(node.nodes, place)
        if self._awaits_key():
            self._set_key(node, place)
            return
        if len(self._open) + node.height > MAX_DEPTH + 1:
            raise YamlInvalid(place, f"nested deeper than {MAX_DEPTH} levels")
        self._attach(node)

    def _set_key(self, node: Node, place: SourceLocation) -> None:
        if not isinstance(node.value, str):
            raise YamlInvalid(place, f"a key must be text; found {shown(node.value)}; put it in quotes")
        if node.value == "<<":
            raise YamlInvalid(place, 'merge keys ("<<") are not supported; write the keys out')
        parent = self._open[-1]
        parent.key = node.value
        parent.node.nodes += node.nodes
        parent.node.chars += node.chars
        first = parent.node.key_places.setdefault(node.value, place)
        if first is not place:
            message = f"the key {shown(node.value)} occurs twice in one mapping; first at line {first.line}"
            self.problems.append(Problem(place, "", message))

    def _attach(self, node: Node) -> None:
        """Add a finished node to its parent, or as the document's root unless it is empty. Of two equal keys in a
        mapping the first stays."""
        if not self._open:
            if node.value is not None:
                self.documents.append((len(self.starts) - 1, node))
            return
        parent = self._open[-1]
        parent.node.nodes += node.nodes
        parent.node.chars += node.chars
        parent.node.height = max(parent.node.height, node.height + 1)
        if isinstance(parent.node.value, list):
            parent.node.value.append(node)
        elif isinstance(parent.node.value, dict) and parent.key is not None:
            parent.node.value.setdefault(parent.key, node)  # the first of two equal keys stays
            parent.key = None

    def _awaits_key(self) -> bool:
        return bool(self._open) and isinstance(self._open[-1].node.value, dict) and self._open[-1].key is None

    def _awaiting_key_place(self) -> SourceLocation | None:
        parent = self._open[-1] if self._open else None
        return parent.node.key_places[parent.key] if parent is not None and parent.key is not None else None

    def _scalar(self, event: ScalarEvent, place: SourceLocation) -> Node:
        self._refuse_tag(event, place)
        is_text = event.style in {"'", '"', "|", ">"} or event.tag in TEXT_TAGS
        if not event.value and not is_text:
            place = self._awaiting_key_place() or place  # YAML places an absent value where the next token begins
        value = event.value if is_text else resolved(event.value)
        node = Node(place, value, chars=len(event.value), text_offset=_text_offset(event))
        if event.anchor is not None:
            self._anchors[event.anchor] = node
        return node

    def _aliased(self, event: AliasEvent, place: SourceLocation) -> Node:
        if event.anchor not in self._anchors:
            raise YamlInvalid(place, f"the alias *{event.anchor} has no anchor &{event.anchor} before it")
        node = self._anchors[event.anchor]
        if node is None:
            raise YamlInvalid(place, f"the alias *{event.anchor} is inside the value that it refers to")
        return node

    def _refuse_tag(self, event: ScalarEvent | CollectionStartEvent, place: SourceLocation) -> None:
        if event.tag is not None and event.tag not in TEXT_TAGS:
            raise YamlInvalid(place, f"the tag {shown(str(event.tag))} is not supported; write the value without it")

    def _count(self, nodes: int, place: SourceLocation) -> None:
        self._nodes += nodes
        if self._nodes > MAX_NODES:
            raise YamlInvalid(place, f"more than {MAX_NODES} values in one document, aliases written out")

    def _count_aliased(self, node: Node, place: SourceLocation) -> None:
        self._stood_for += node.nodes + node.chars // ALIASED_CHARS
        if self._stood_for > MAX_ALIASED:
            raise YamlInvalid(
                place, f"the aliases of this file stand for more than {MAX_ALIASED} values; write the values out"
            )


def _text_offset(event: ScalarEvent) -> int | None:
    """Return the offset in characters of a scalar's text from its location; None if the text is not written
    literally."""
    before = {None: 0, "": 0, "'": 1, '"': 1}.get(event.style)
    if before is None or event.end_mark.index - event.start_mark.index != len(event.value) + 2 * before:
        return None
    return before
