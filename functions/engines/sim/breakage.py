"""How each kind of malformed response is written.

`faults` says which kind, `stream` asks for it event by event.
"""

from collections.abc import Callable

from functions.engines.sim.connection import Connection
from functions.engines.sim.faults import Malformed

HTML_PAGE = b"<html><head><title>502 Bad Gateway</title></head><body><h1>It works!</h1></body></html>\n"
_HUGE_BYTES = 2 << 20
_LIE_BYTES = 100
_BROKEN_EVENT = 1
"""Index of the event that is broken, where only one is: the first is good, so the client has begun to trust us."""


class Writer:
    """Writes events as transfer chunks, as they are."""

    headers: tuple[tuple[bytes, bytes], ...] = ()

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def event(self, data: bytes) -> None:
        self._connection.write_chunk(data)

    def finish(self) -> None:
        """After the last event."""


class BrokenWriter(Writer):
    """Writes events broken in one way."""

    def __init__(self, connection: Connection, kind: Malformed) -> None:
        super().__init__(connection)
        self._events = 0
        self._held = b""
        self._kind = kind
        self._break: Callable[[bytes], None] = {
            Malformed.NO_BLANK_LINE: self._without_blank_line,
            Malformed.CRLF: self._with_crlf,
            Malformed.HUGE_LINE: self._with_huge_line,
            Malformed.NON_JSON: self._with_nonsense,
            Malformed.TRUNCATED_CHUNK: self._truncated,
            Malformed.WRONG_CONTENT_LENGTH: self._unframed,
            Malformed.SPLIT_UTF8: self._split,
        }.get(kind, connection.write_chunk)
        if kind is Malformed.WRONG_CONTENT_LENGTH:
            self.headers = ((b"content-length", b"1000000"),)

    def event(self, data: bytes) -> None:
        self._break(data)
        self._events += 1

    def _without_blank_line(self, data: bytes) -> None:
        self._connection.write_chunk(data.replace(b"\n\n", b"\n"))

    def _with_crlf(self, data: bytes) -> None:
        self._connection.write_chunk(data.replace(b"\n", b"\r\n"))

    def _with_huge_line(self, data: bytes) -> None:
        if self._events == _BROKEN_EVENT:
            self._connection.write_chunk(b": " + b"x" * _HUGE_BYTES + b"\n\n")
        self._connection.write_chunk(data)

    def _with_nonsense(self, data: bytes) -> None:
        self._connection.write_chunk(b'data: {"choices": [oops\n\n' if self._events == _BROKEN_EVENT else data)

    def _truncated(self, data: bytes) -> None:
        if self._events < _BROKEN_EVENT:
            self._connection.write_chunk(data)
        elif self._events == _BROKEN_EVENT:
            self._connection.write(b"%x\r\n%b" % (len(data) + _LIE_BYTES, data))
            self._connection.close()

    def _unframed(self, data: bytes) -> None:
        if self._events <= _BROKEN_EVENT:
            self._connection.write(data)
        else:
            self._connection.close()

    def _split(self, data: bytes) -> None:
        """The second half of each event comes with the first half of the next one, a step later."""
        middle = next((i for i, byte in enumerate(data) if byte & 0xC0 == 0x80), len(data) // 2)
        self._connection.write_chunk(self._held + data[:middle])
        self._held = data[middle:]

    def finish(self) -> None:
        if self._held:
            self._connection.write_chunk(self._held)


def writer_for(connection: Connection, kind: Malformed | None) -> Writer:
    return Writer(connection) if kind is None else BrokenWriter(connection, kind)
