"""Multipart form of a batch's file: one part "file" whose bytes pass on, and a few small fields."""

from functions.http.multipart import MultipartForm, MultipartInvalid, boundary_of


class UploadForm(MultipartForm):
    """Feed it blocks; what `feed` returns are bytes of the file. Then `end`."""

    def __init__(self, content_type: str) -> None:
        super().__init__(boundary_of(content_type))
        self.filename: str | None = None  # None: no file came yet
        self._pieces: list[bytes] = []

    def feed(self, block: bytes) -> list[bytes]:
        self.write(block)
        found, self._pieces = self._pieces, []
        return found

    def end(self) -> None:
        super().end()
        if self.filename is None:
            raise MultipartInvalid("The form has no part 'file'.")

    def file_begins(self, filename: bytes) -> None:
        if self.filename is not None:
            raise MultipartInvalid("The form has two parts 'file'. Send one file at a time.")
        self.filename = filename.decode(errors="replace")

    def file_data(self, piece: bytes) -> None:
        self._pieces.append(piece)
