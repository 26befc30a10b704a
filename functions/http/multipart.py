"""Streaming parser for multipart/form-data bodies (RFC 7578): small fields are stored, files are passed on in pieces.

    part "tenant"                  a field, of at most `FIELD_MAX_BYTES`
    part "file"; filename="a/b"    a file: `file_begins`, `file_data` for each piece of it, `file_ends`

File content is not stored. This parser limits parts, fields and headers; the subclass checks file names and limits
upload time. Subclasses of `MultipartForm` define what a form may contain.
"""

import contextlib
from collections.abc import Iterator
from typing import ClassVar

from python_multipart.exceptions import MultipartParseError
from python_multipart.multipart import MultipartParser, parse_options_header

FIELD_MAX_BYTES = 1024
_HEADER_MAX_BYTES = 2048  # all headers of one part together
_IDENTITY = (b"binary", b"8bit", b"7bit")  # transfer encodings that leave the bytes unchanged


class MultipartInvalid(Exception):
    """The body is not the expected form; the message is a sentence that says what is expected."""


def boundary_of(content_type: str) -> bytes:
    """Return the boundary; MultipartInvalid if the header is not multipart/form-data with a boundary of 1 to 70
    bytes."""
    kind, options = parse_options_header(content_type)
    boundary = options.get(b"boundary", b"")
    if kind != b"multipart/form-data" or not 1 <= len(boundary) <= 70:
        raise MultipartInvalid("Send the file as multipart/form-data with a boundary, in a part named 'file'.")
    return boundary


class MultipartForm:
    """A form that is parsed as it arrives: call `write` with each block, then `end`."""

    max_parts: ClassVar[int] = 16
    max_fields: ClassVar[int] = 16
    fields_first: ClassVar[bool] = False  # True if later code needs the fields to handle the files

    def __init__(self, boundary: bytes) -> None:
        self.fields: dict[str, str] = {}
        self.files = 0  # files that have begun
        self._name, self._value = bytearray(), bytearray()  # name and value of the current header
        self._headers: dict[bytes, bytes] = {}  # headers of the current part
        self._header_bytes = 0
        self._parts = 0
        self._field: str | None = None  # name of the current field; None while a file arrives
        self._text = bytearray()
        self._is_whole = False
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

    # Methods that a subclass implements.

    def file_begins(self, filename: bytes) -> None:
        """Begin a file with the client's name for it, which may be empty; MultipartInvalid if the form may not
        contain it."""
        raise NotImplementedError

    def file_data(self, piece: bytes) -> None:
        raise NotImplementedError

    def file_ends(self) -> None:
        """End the current file."""

    # Methods for the code that reads the body.

    def write(self, block: bytes) -> None:
        """Parse one block; MultipartInvalid if it is malformed or `file_begins` rejects it."""
        with _parser_errors():
            self._parser.write(block)

    def end(self) -> None:
        """End the body; MultipartInvalid if the form is incomplete."""
        if not self._is_whole:
            raise MultipartInvalid("The form ended before its last boundary. Send it again.")
        with _parser_errors():
            self._parser.finalize()

    # Parser callbacks.

    def _part_begins(self) -> None:
        self._parts += 1
        if self._parts > self.max_parts:
            raise MultipartInvalid(f"The form has more than {self.max_parts} parts.")
        self._name, self._value = bytearray(), bytearray()
        self._headers, self._header_bytes = {}, 0
        self._field, self._text = None, bytearray()

    def _header_name(self, data: bytes, start: int, end: int) -> None:
        self._count_header(end - start)
        self._name += data[start:end]

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._count_header(end - start)
        self._value += data[start:end]

    def _count_header(self, size_bytes: int) -> None:
        self._header_bytes += size_bytes
        if self._header_bytes > _HEADER_MAX_BYTES:
            raise MultipartInvalid(f"The headers of a part are over {_HEADER_MAX_BYTES} bytes.")

    def _header_ends(self) -> None:
        self._headers[bytes(self._name).lower()] = bytes(self._value)
        self._name, self._value = bytearray(), bytearray()

    def _headers_end(self) -> None:
        _, options = parse_options_header(self._headers.get(b"content-disposition", b""))
        if self._headers.get(b"content-transfer-encoding", b"binary").lower() not in _IDENTITY:
            raise MultipartInvalid("content-transfer-encoding is not supported; send the bytes unencoded.")
        name = text_of(options.get(b"name", b""))
        if name == "file" or b"filename" in options:
            self._file(name, options.get(b"filename", b""))
        elif self.files and self.fields_first:
            raise MultipartInvalid(f"The field {name[:80]!r} came after a file; send fields first.")
        elif not name or name in self.fields or len(self.fields) >= self.max_fields:
            raise MultipartInvalid(
                f"The field {name[:80]!r} has no name, is repeated, or exceeds the limit of {self.max_fields} fields."
            )
        else:
            self._field = name

    def _file(self, name: str, filename: bytes) -> None:
        if name != "file":
            raise MultipartInvalid(f"A file was sent as part {name[:80]!r}; send files as parts named file.")
        self.files += 1
        self.file_begins(filename)

    def _data(self, data: bytes, start: int, end: int) -> None:
        if self._field is None:
            self.file_data(data[start:end])
            return
        self._text += data[start:end]
        if len(self._text) > FIELD_MAX_BYTES:
            raise MultipartInvalid(f"The field {self._field[:80]!r} is over {FIELD_MAX_BYTES} bytes.")

    def _part_ends(self) -> None:
        if self._field is None:
            self.file_ends()
        else:
            self.fields[self._field] = text_of(bytes(self._text))

    def _all_ends(self) -> None:
        self._is_whole = True


@contextlib.contextmanager
def _parser_errors() -> Iterator[None]:
    try:
        yield
    except MultipartParseError as error:
        raise MultipartInvalid(f"The body is not well-formed multipart/form-data: {error}.") from error


def text_of(raw: bytes) -> str:
    """Decode a name or field of a form as UTF-8; MultipartInvalid if it is not UTF-8."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise MultipartInvalid("Names and fields must be UTF-8.") from error
