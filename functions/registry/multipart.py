"""Multipart form of an adapter's upload: fields first, then files, each file's bytes written at once.

    part "tenant", "base_model", …     fields
    part "file"; filename="a/b"        a file of the adapter

Names, sizes and numbers are judged by the upload that a file is written to. Blocks on that upload's disk.
"""

from collections.abc import Callable
from typing import ClassVar, Protocol

from functions.http.multipart import MultipartForm, text_of


class Writer(Protocol):
    def write(self, block: bytes) -> None: ...
    def close(self) -> None: ...


class AdapterForm(MultipartForm):
    """`open_file` is asked for a writer when a file begins."""

    max_parts: ClassVar[int] = 1024
    fields_first: ClassVar[bool] = True

    def __init__(self, boundary: bytes, open_file: Callable[[str], Writer]) -> None:
        super().__init__(boundary)
        self._open_file = open_file
        self._writer: Writer | None = None

    def file_begins(self, filename: bytes) -> None:
        self._writer = self._open_file(text_of(filename))

    def file_data(self, piece: bytes) -> None:
        if self._writer is not None:
            self._writer.write(piece)

    def file_ends(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
