"""Injectable faults, set at start (`--sim-*`) or at runtime (`POST /sim/faults` merges; GET returns them).

There are two kinds. Faults of the whole engine (refuse, hang, freeze, slow, dead) affect every request. Faults of a
request affect the share `ratio` of generation requests (only those for `model`, if it is set). They are drawn from a
seeded generator, so a run can be repeated. `/sim/*` itself always works, except while the listener is closed.
"""

from collections.abc import Callable
from enum import StrEnum
from random import Random

from pydantic import BaseModel, ConfigDict, Field

from functions.engines.sim.connection import ClientConnection


class Malformed(StrEnum):
    """Ways to break the bytes of a response."""

    NO_BLANK_LINE = "no_blank_line"
    """Events end with one newline instead of two."""
    CRLF = "crlf"
    """Lines end with CR LF: legal server-sent events that careless parsers miss."""
    HUGE_LINE = "huge_line"
    """The second event is a comment line of 2 MiB."""
    NON_JSON = "non_json"
    """The second event's data is not JSON."""
    HTML_BODY = "html_body"
    """200 with an HTML page, as a misconfigured proxy answers."""
    TRUNCATED_CHUNK = "truncated_chunk"
    """The transfer chunk announces more bytes than follow, then the connection closes."""
    WRONG_CONTENT_LENGTH = "wrong_content_length"
    """Content-Length announces more bytes than follow, then the connection closes."""
    SPLIT_UTF8 = "split_utf8"
    """Every event arrives in two halves, a step apart, cut inside a multi-byte character if there is one."""


class Faults(BaseModel):
    """Fault switches. Unset ones (null, false, 1.0) do nothing."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=False)

    refuse_s: float | None = Field(None, gt=0)
    """Close the listener, reset every connection, and listen again after so many seconds."""
    reset_connections: bool = False
    """Accept, then reset instead of answering (everything but /sim)."""
    hang: bool = False
    """Accept and never answer (everything but /sim)."""
    freeze: bool = False
    """Stop the step loop: requests wait for ever, but /health stays 200, as with a hung vLLM."""
    lose_kv_blocks: bool = False
    """Make all blocks that are held for other engines unreadable."""
    slow_factor: float = Field(1.0, gt=0)
    """Factor by which every step takes longer."""
    kv_held_ratio: float = Field(0.0, ge=0, lt=1)
    """Share of the KV blocks that is unusable, as after a leak. Enough blocks for one sequence always remain."""
    forget_prefixes: bool = False
    """Find no prefix in the cache, without an event. An index that follows the events then predicts too many hits."""
    engine_dead: bool = False
    """The engine process died: /health answers 503 and requests 500, then the server exits."""

    ratio: float = Field(1.0, ge=0, le=1)
    """Share of generation requests that the faults below affect."""
    model: str | None = Field(None, max_length=320)
    """Text in the model's name that restricts the faults below, such as to one bad adapter among good ones."""
    delay_s: float | None = Field(None, gt=0, le=600)
    """Delay before the answer begins."""
    error_status: int | None = Field(None, ge=400, le=599)
    retry_after_s: float | None = Field(None, ge=0)
    """Value of Retry-After, sent with `error_status`."""
    stall_after_tokens: int | None = Field(None, ge=0)
    """Number of tokens to send before the stream falls silent with the connection open."""
    reset_after_tokens: int | None = Field(None, ge=0)
    die_after_tokens: int | None = Field(None, ge=0)
    """Number of tokens after which the process exits; 0 means before the first token."""
    malformed: Malformed | None = None


class FaultBox:
    """The active fault switches, and the random numbers that select the affected requests."""

    def __init__(self, faults: Faults, rng: Random) -> None:
        self.now = faults
        self._rng = rng

    def merge(self, changes: dict[str, object]) -> Faults:
        """Apply changes and return all switches. Raise pydantic.ValidationError, and change nothing, if one is
        invalid."""
        self.now = Faults.model_validate({**self.now.model_dump(), **changes})
        return self.now

    def draw_for_request(self, model: str = "") -> Faults:
        """Return the next generation request's faults: the active switches if they mean its model and the draw hits it,
        else none."""
        is_meant = self.now.model is None or self.now.model in model
        hit = is_meant and self._rng.random() < self.now.ratio
        return self.now if hit else Faults()


HTML_PAGE = b"<html><head><title>502 Bad Gateway</title></head><body><h1>It works!</h1></body></html>\n"
_HUGE_BYTES = 2 << 20
_LIE_BYTES = 100
_BROKEN_EVENT = 1
"""Index of the event to break if only one is broken: the client has already received a good first one."""


class Writer:
    """Writer that sends events as transfer chunks, unchanged."""

    headers: tuple[tuple[bytes, bytes], ...] = ()

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection

    def event(self, data: bytes) -> None:
        self._connection.write_chunk(data)

    def finish(self) -> None:
        """Write what must follow the last event; nothing by default."""


class BrokenWriter(Writer):
    """Writer that breaks events in one way."""

    def __init__(self, connection: ClientConnection, kind: Malformed) -> None:
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
        """Cut the event inside its first multi-byte UTF-8 character, or in the middle if it has none. Send the held
        rest of the previous event with the part before the cut; hold the rest until the next event or `finish`."""
        middle = next((i for i, byte in enumerate(data) if byte & 0xC0 == 0x80), len(data) // 2)
        self._connection.write_chunk(self._held + data[:middle])
        self._held = data[middle:]

    def finish(self) -> None:
        if self._held:
            self._connection.write_chunk(self._held)


def writer_for(connection: ClientConnection, kind: Malformed | None) -> Writer:
    return Writer(connection) if kind is None else BrokenWriter(connection, kind)
