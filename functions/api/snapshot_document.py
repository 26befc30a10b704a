"""The snapshot's bytes: a header line, then one line of JSON per entry, by section and name.

    {"is":"snapshot","schema_version":3,"epoch":7,"revision":"main@…","compiled_unix_s":1.5,"base":""}
    {"is":"key","key_id":"ci","tenant":"acme",…}
    …
    {"is":"tenant","name":"acme","tier":"enterprise",…}

A delta has the same form, with the content hash of its base in the header. Its lines are added or changed entries,
and `{"is":"removed","section":"keys","name":"ci"}` for removed ones. Lines are strictly sorted, so there are no
duplicates. A document can be read and written in slices, and is never needed as one piece.
"""

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from functions.api.snapshot_comparison import SLICE, Changes, Comparison, name_of, singular
from functions.api.snapshot_entries import SCHEMA_VERSION, SECTIONS, AnyEntry, Epoch, Removed, Snapshot, SnapshotInvalid
from functions.api.snapshot_index import Indexed, applied, without_pause
from functions.api.snapshot_tree import Breathe, line_of

SNAPSHOT_MAX_BYTES = 64 * 1024 * 1024
_CHUNK_BYTES = 64 * 1024


class Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="is", tag="snapshot"):
    schema_version: int
    epoch: Epoch
    revision: str
    compiled_unix_s: float
    base: str = ""  # in a delta: the content hash of its base


class _Versioned(msgspec.Struct, tag_field="is", tag="snapshot"):
    """The field that every version of the header has."""

    schema_version: int


class BaseMissing(SnapshotInvalid):
    """A delta for another base than the current one: request the whole document."""


_header_decoder = msgspec.json.Decoder(Header)
_version_decoder = msgspec.json.Decoder(_Versioned)
_entry_decoder = msgspec.json.Decoder(AnyEntry | Removed)
_RANK = {section: rank for rank, section in enumerate(SECTIONS)}
_SECTION_OF = {type_: section for section, (type_, _) in SECTIONS.items()}
_NAME_OF = {section: name_of(section) for section in SECTIONS}


def full_lines(snapshot: Snapshot) -> Iterator[bytes]:
    """Yield the lines of the whole document. The sections must be sorted by name, as in `Indexed`."""
    yield _header(snapshot, "")
    for section in SECTIONS:
        for entry in getattr(snapshot, section):
            yield line_of(entry) + b"\n"


def delta_lines(new: Snapshot, base_hash: str, changes: Changes) -> Iterator[bytes]:
    """Yield the lines of a delta from the content named `base_hash` to `new`; `changes` has new entries by section and
    name, None for a removed one."""
    yield _header(new, base_hash)
    for section in SECTIONS:
        changed = changes.get(section, {})
        for name in sorted(changed):
            entry = changed[name]
            yield line_of(Removed(section, name) if entry is None else entry) + b"\n"  # type: ignore[arg-type]


def _header(snapshot: Snapshot, base: str) -> bytes:
    origin = (snapshot.schema_version, snapshot.epoch, snapshot.revision, snapshot.compiled_unix_s)
    return line_of(Header(*origin, base)) + b"\n"


def in_chunks(document: bytes) -> Iterator[bytes]:
    """Split a document into chunks for `read`."""
    for start in range(0, len(document), _CHUNK_BYTES):
        yield document[start : start + _CHUNK_BYTES]


def read(chunks: Iterable[bytes], base: Indexed, breathe: Breathe = without_pause) -> Indexed:
    """Read a document, full or a delta for `base`; entries that equal the base's are shared with it.

    A content that deltas have made too large for a full document is rejected: a process without the base could
    never get it. SnapshotInvalid says what is wrong; BaseMissing means that it is a delta for another base.
    """
    try:
        lines = _lines(chunks)
        header = _read_header(next(lines, b""))
        if header.base and header.base != base.content_hash:
            raise BaseMissing(f"a delta for {header.base}, but the content at hand is {base.content_hash}")
        changes = _read_changes(lines, base, is_delta=bool(header.base), breathe=breathe)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SnapshotInvalid(f"not a snapshot: {error}") from error
    origin = Snapshot(SCHEMA_VERSION, header.epoch, header.revision, header.compiled_unix_s, (), (), (), ())
    content = applied(base, origin, changes, breathe)
    _check_size(content.tree.size_bytes + len(_header(origin, "")))
    return content


def _check_size(size_bytes: int) -> None:
    if size_bytes > SNAPSHOT_MAX_BYTES:
        raise SnapshotInvalid(f"snapshot of {size_bytes} bytes or more is over the limit of {SNAPSHOT_MAX_BYTES}")


def _read_header(line: bytes) -> Header:
    version = _version_decoder.decode(line).schema_version
    if version != SCHEMA_VERSION:
        raise SnapshotInvalid(f"schema version {version}; this build reads {SCHEMA_VERSION}")
    return _header_decoder.decode(line)


def _read_changes(lines: Iterator[bytes], base: Indexed, *, is_delta: bool, breathe: Breathe) -> Changes:
    changes: dict[str, dict[str, AnyEntry | None]] = {section: {} for section in SECTIONS}
    comparison = Comparison(base.snapshot)
    last = (-1, "")
    for count, line in enumerate(lines):
        entry = _entry_decoder.decode(line)
        section, name = _place(entry)
        place = (_RANK[section], name)
        if place <= last:
            what = "occurs twice" if place == last else "is out of order"
            raise SnapshotInvalid(f"the {singular(section)} {name} {what}")
        if isinstance(entry, Removed):
            if not is_delta or name not in base.table(section):
                raise SnapshotInvalid(f"removes the {singular(section)} {name}, which is not in its base")
            changes[section][name] = None
        elif is_delta:
            changes[section][name] = entry
        else:
            comparison.add(section, name, entry)
        last = place
        if count % SLICE == 0:
            breathe()
    return changes if is_delta else comparison.finish(breathe)


def _place(entry: AnyEntry | Removed) -> tuple[str, str]:
    if isinstance(entry, Removed):
        return entry.section, entry.name
    section = _SECTION_OF[type(entry)]
    return section, _NAME_OF[section](entry)


def _lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the lines of a document without their ends; SnapshotInvalid if the last one has no end or the document is
    too large."""
    rest: Sequence[bytes] = ()
    size_bytes = 0
    for chunk in chunks:
        size_bytes += len(chunk)
        _check_size(size_bytes)
        first, *others = chunk.split(b"\n")
        if not others:
            rest = (*rest, first)
            continue
        yield b"".join((*rest, first))
        yield from others[:-1]
        rest = (others[-1],)
    if any(rest):
        raise SnapshotInvalid("not a snapshot: the last line has no end")
