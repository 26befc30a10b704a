"""A multipart body, parsed as it streams: fields first, then files, each file's bytes passed on at once.

    part "tenant", "base_model", …     a field of at most `FIELD_MAX_BYTES`
    part "file"; filename="a/b"        a file of the adapter

Nothing is kept of a file here; names, sizes and numbers are judged by the upload that it is written to. Blocks on that
upload's disk.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from python_multipart.exceptions import MultipartParseError
from python_multipart.multipart import MultipartParser, parse_options_header

FIELD_MAX_BYTES = 1024
MAX_FIELDS = 16
MAX_PARTS = 1024
_HEADER_MAX_BYTES = 2048  # of one part, all headers together


class MultipartInvalid(Exception):
    """Not the multipart body that is expected; the message says what is."""


class Writer(Protocol):
    def write(self, block: bytes) -> None: ...
    def close(self) -> None: ...


def boundary_of(content_type: str) -> bytes:
    """MultipartInvalid where the header names none."""
    kind, options = parse_options_header(content_type)
    boundary = options.get(b"boundary", b"")
    if kind != b"multipart/form-data" or not 1 <= len(boundary) <= 70:
        raise MultipartInvalid("the body must be multipart/form-data with a boundary")
    return boundary


@dataclass(slots=True)
class Form:
    """Feed it the body, then `end`. `open_file` is asked for a writer when a file begins."""

    boundary: bytes
    open_file: Callable[[str], Writer]
    fields: dict[str, str] = field(default_factory=dict)
    files: int = 0
    _parser: MultipartParser = field(init=False, repr=False)
    _header: list[bytes] = field(default_factory=list)
    _headers: dict[bytes, bytes] = field(default_factory=dict)
    _header_bytes: int = 0
    _parts: int = 0
    _field: str = ""
    _value: bytearray = field(default_factory=bytearray)
    _writer: Writer | None = None
    _ended: bool = False

    def __post_init__(self) -> None:
        self._parser = MultipartParser(
            self.boundary,
            {
                "on_part_begin": self._part_begins,
                "on_header_field": self._header_name,
                "on_header_value": self._header_value,
                "on_header_end": self._header_ends,
                "on_headers_finished": self._headers_end,
                "on_part_data": self._data,
                "on_part_end": self._part_ends,
                "on_end": self._all_ends,
            },
        )
        self._header = [b"", b""]

    def feed(self, block: bytes) -> None:
        with _translated():
            self._parser.write(block)

    def end(self) -> None:
        if not self._ended:
            raise MultipartInvalid("the body ended before its last boundary")
        with _translated():
            self._parser.finalize()

    def _part_begins(self) -> None:
        self._parts += 1
        if self._parts > MAX_PARTS:
            raise MultipartInvalid(f"the body has more than {MAX_PARTS} parts")
        self._header, self._headers, self._header_bytes = [b"", b""], {}, 0
        self._field, self._value, self._writer = "", bytearray(), None

    def _header_name(self, data: bytes, start: int, end: int) -> None:
        self._count_header(end - start)
        self._header[0] += data[start:end]

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._count_header(end - start)
        self._header[1] += data[start:end]

    def _count_header(self, size_bytes: int) -> None:
        self._header_bytes += size_bytes
        if self._header_bytes > _HEADER_MAX_BYTES:
            raise MultipartInvalid(f"a part's headers are over {_HEADER_MAX_BYTES} bytes")

    def _header_ends(self) -> None:
        self._headers[self._header[0].lower()] = self._header[1]
        self._header = [b"", b""]

    def _headers_end(self) -> None:
        _, options = parse_options_header(self._headers.get(b"content-disposition", b""))
        if b"content-transfer-encoding" in self._headers:
            raise MultipartInvalid("content-transfer-encoding is not taken; send the bytes as they are")
        name = _text(options.get(b"name", b""))
        if b"filename" in options:
            if name != "file":
                raise MultipartInvalid(f"a file came as part {name[:80]!r}; files come as parts named file")
            self.files += 1
            self._writer = self.open_file(_text(options[b"filename"]))
            return
        if self.files:
            raise MultipartInvalid(f"the field {name[:80]!r} came after a file; send fields first")
        if not name or name in self.fields or len(self.fields) >= MAX_FIELDS:
            raise MultipartInvalid(f"the field {name[:80]!r} has no name, came twice, or is one too many")
        self._field = name

    def _data(self, data: bytes, start: int, end: int) -> None:
        if self._writer is not None:
            self._writer.write(data[start:end])
            return
        self._value += data[start:end]
        if len(self._value) > FIELD_MAX_BYTES:
            raise MultipartInvalid(f"the field {self._field[:80]!r} is over {FIELD_MAX_BYTES} bytes")

    def _part_ends(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        else:
            self.fields[self._field] = _text(bytes(self._value))

    def _all_ends(self) -> None:
        self._ended = True


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except MultipartParseError as error:
        raise MultipartInvalid(f"the multipart body is malformed: {error}") from error


def _text(raw: bytes) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise MultipartInvalid("names and fields are UTF-8") from error
