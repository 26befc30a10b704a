"""Lines of a batch's input file: cut from its blocks and checked, with bounded memory.

A blank line is skipped. A line that is too long is reported without its text. After `MAX_FILE_LINES` one more line is
returned to report the excess, and no further ones (test_file_of_empty_lines_stops_at_the_line_limit).

Neighbours: the shell reads blocks and parses JSON; `gateway.intake.intake` checks the body of a line as a request.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from functions.decisions.batch.record import LineProblem

MAX_LINES = 50_000  # requests in one file; OpenAI's own limit
MAX_FILE_LINES = 2 * MAX_LINES  # including empty ones
MAX_PROBLEMS = 100  # problems reported for one file; then reading stops
CUSTOM_ID_CHARS = 256
_KNOWN = frozenset({"custom_id", "method", "url", "body"})


@dataclass(frozen=True, slots=True)
class RawLine:
    number: int  # in the file, from 1
    ordinal: int  # position in the file that skips empty lines, from 0
    text: bytes | None  # None if longer than a request may be, or beyond the last line that a file may have


@dataclass(slots=True)
class LineCutter:
    """Feed it blocks in order, then call `end`. It holds one line."""

    max_line_bytes: int
    _held: bytearray = field(default_factory=bytearray)
    _too_long: bool = False
    _number: int = 0
    _ordinal: int = 0

    @property
    def is_over(self) -> bool:
        """True if the file has too many lines: further lines are ignored."""
        return self._number > MAX_FILE_LINES

    def feed(self, block: bytes) -> Iterator[RawLine]:
        first, *others = block.split(b"\n") if not self.is_over else (b"",)
        self._append(first)
        for piece in others:
            yield from self._cut()
            if self.is_over:
                return
            self._append(piece)

    def end(self) -> Iterator[RawLine]:
        if self._held or self._too_long:
            yield from self._cut()

    def _append(self, piece: bytes) -> None:
        if self._too_long or not piece:
            return
        if len(self._held) + len(piece) > self.max_line_bytes:
            self._too_long, self._held = True, bytearray()
        else:
            self._held += piece

    def _cut(self) -> Iterator[RawLine]:
        self._number += 1
        if self.is_over:
            self._held, self._too_long = bytearray(), False
            yield RawLine(self._number, self._ordinal, None)
            return
        text, too_long = bytes(self._held).strip(b" \t\r"), self._too_long
        self._too_long = False
        self._held.clear()
        if text or too_long:
            yield RawLine(self._number, self._ordinal, None if too_long else text)
            self._ordinal += 1


@dataclass(frozen=True, slots=True)
class Line:
    """One request of a batch."""

    ordinal: int
    custom_id: str
    body: dict[str, Any]


def too_many_lines(line: RawLine) -> LineProblem | None:
    if line.ordinal < MAX_LINES and line.number <= MAX_FILE_LINES:
        return None
    message = f"A file has at most {MAX_LINES} requests, and as many empty lines. Send several batches."
    return LineProblem("too_many_requests", message, line.number)


def read_line(line: RawLine, parsed: object, endpoint: str) -> Line | LineProblem:
    """Return the request of a parsed line, or the problem with it."""
    if not isinstance(parsed, dict):
        return _wrong(line, "invalid_json_line", "Each line must be a JSON object.")
    for is_wrong, code, message, param in _CHECKS:
        if is_wrong(parsed):
            return _wrong(line, code, message, param)
    if parsed.get("url") != endpoint:
        return _wrong(line, "mismatched_url", f"'url' must be the batch's endpoint, {endpoint}.", "url")
    return Line(line.ordinal, parsed["custom_id"], parsed["body"])


def _lacks_id(parsed: dict[str, Any]) -> bool:
    return not isinstance(parsed.get("custom_id"), str) or not parsed["custom_id"]


_CHECKS: tuple[tuple[Callable[[dict[str, Any]], bool], str, str, str], ...] = (
    (_lacks_id, "missing_custom_id", "'custom_id' is required: a string.", "custom_id"),
    (
        lambda parsed: len(parsed["custom_id"]) > CUSTOM_ID_CHARS,
        "invalid_custom_id",
        f"'custom_id' is longer than {CUSTOM_ID_CHARS} characters.",
        "custom_id",
    ),
    (lambda parsed: parsed.get("method") != "POST", "invalid_method", "'method' must be \"POST\".", "method"),
    (
        lambda parsed: not isinstance(parsed.get("body"), dict),
        "missing_body",
        "'body' is required: the request as a JSON object.",
        "body",
    ),
    (
        lambda parsed: bool(parsed["body"].get("stream")),
        "stream_not_offered",
        "'stream' is not supported in a batch.",
        "body.stream",
    ),
    (
        lambda parsed: not _KNOWN.issuperset(parsed),
        "unknown_field",
        "A line must have only custom_id, method, url and body.",
        "",
    ),
)


def duplicate(line: RawLine) -> LineProblem:
    return _wrong(line, "duplicate_custom_id", "This 'custom_id' is already used on an earlier line.", "custom_id")


def over_long(line: RawLine, max_bytes: int) -> LineProblem:
    return _wrong(line, "line_too_large", f"The line is over {max_bytes} bytes.")


def empty_file() -> LineProblem:
    return LineProblem("empty_file", "The file has no requests. Write one JSON object per line.")


def _wrong(line: RawLine, code: str, message: str, param: str | None = None) -> LineProblem:
    return LineProblem(code, message, line.number, param or None)
