"""Multipart form of an upload, parsed as it streams: a part "file" whose bytes pass on, and a few small fields."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field

from python_multipart.exceptions import MultipartParseError
from python_multipart.multipart import MultipartParser, parse_options_header

FIELD_MAX_BYTES = 1024
MAX_PARTS = 16
_HEADER_MAX_BYTES = 2048  # of one part, all headers together


class FormInvalid(Exception):
    """Not the form that is expected; the message says what is."""


@dataclass(slots=True)
class UploadForm:
    """Feed it blocks; what `feed` returns are bytes of the file. Then `end`."""

    content_type: str
    fields: dict[str, str] = field(default_factory=dict)
    filename: str | None = None  # None: no file came yet
    _parser: MultipartParser = field(init=False, repr=False)
    _name: bytearray = field(default_factory=bytearray)
    _value: bytearray = field(default_factory=bytearray)
    _headers: dict[bytes, bytes] = field(default_factory=dict)
    _header_bytes: int = 0
    _parts: int = 0
    _field: str | None = None  # the one under way; None: the file
    _text: bytearray = field(default_factory=bytearray)
    _file: list[bytes] = field(default_factory=list)
    _is_whole: bool = False

    def __post_init__(self) -> None:
        kind, options = parse_options_header(self.content_type)
        boundary = options.get(b"boundary", b"")
        if kind != b"multipart/form-data" or not 1 <= len(boundary) <= 70:
            raise FormInvalid("Send the file as multipart/form-data, with the parts 'purpose' and 'file'.")
        with _translated():
            self._parser = MultipartParser(
                boundary,
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

    def feed(self, block: bytes) -> list[bytes]:
        with _translated():
            self._parser.write(block)
        found, self._file = self._file, []
        return found

    def end(self) -> None:
        if not self._is_whole:
            raise FormInvalid("The form ended before its last boundary. Send it again.")
        if self.filename is None:
            raise FormInvalid("The form has no part 'file'.")

    def _part_begins(self) -> None:
        self._parts += 1
        if self._parts > MAX_PARTS:
            raise FormInvalid(f"The form has more than {MAX_PARTS} parts.")
        self._headers, self._header_bytes, self._field, self._text = {}, 0, None, bytearray()

    def _header_name(self, data: bytes, start: int, end: int) -> None:
        self._count_header(end - start)
        self._name += data[start:end]

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._count_header(end - start)
        self._value += data[start:end]

    def _count_header(self, size_bytes: int) -> None:
        self._header_bytes += size_bytes
        if self._header_bytes > _HEADER_MAX_BYTES:
            raise FormInvalid(f"The headers of a part are over {_HEADER_MAX_BYTES} bytes.")

    def _header_ends(self) -> None:
        self._headers[bytes(self._name).lower()] = bytes(self._value)
        self._name, self._value = bytearray(), bytearray()

    def _headers_end(self) -> None:
        _, options = parse_options_header(self._headers.get(b"content-disposition", b""))
        name = options.get(b"name", b"").decode(errors="replace")
        if name == "file":
            if self.filename is not None:
                raise FormInvalid("The form has two parts 'file'. Send one file at a time.")
            self.filename = options.get(b"filename", b"").decode(errors="replace")
        elif not name or name in self.fields:
            raise FormInvalid("A part of the form has no name, or one that came before.")
        else:
            self._field = name

    def _data(self, data: bytes, start: int, end: int) -> None:
        if self._field is None:
            self._file.append(data[start:end])
            return
        self._text += data[start:end]
        if len(self._text) > FIELD_MAX_BYTES:
            raise FormInvalid(f"A field of the form is over {FIELD_MAX_BYTES} bytes.")

    def _part_ends(self) -> None:
        if self._field is not None:
            self.fields[self._field] = self._text.decode(errors="replace")

    def _all_ends(self) -> None:
        self._is_whole = True


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except MultipartParseError as error:
        raise FormInvalid("The body is not well-formed multipart/form-data.") from error
