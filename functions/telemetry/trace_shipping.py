"""Shipping of trace files: what is in them goes to a receiver, each line once, however often one of the two is killed.

    files ──► position: "from here to there is under way" ──► the receiver ──► position: "up to there it has them"

A piece is some whole lines of one file. Its ends are written down before it is sent, and it is sent again with the same
ends and under the same name for as long as nobody has said that it is there: the receiver knows by the name what it
has. So a shipper that is killed between the answer and its note doubles nothing.

One process ships a directory, whoever has its lock: a gateway's successor takes over what the gateway left, half lines
at the ends of files that nobody writes any more included (`torn`). A receiver that is away costs time, and rows only
when their files go for want of room (`spool`); rows that it refuses are halved until the bad one is alone (`refused`).

Neighbours: `trace_files` has the files and their bound; `store.client` and `otlp` receive.
"""

import logging
import os
import threading
from pathlib import Path
from typing import Protocol

import msgspec
import xxhash

from functions.telemetry.trace_files import held, is_finished, size_of
from functions.telemetry.trace_row import LINE_MAX_BYTES, PATTERN

_log = logging.getLogger(__name__)
PIECE_BYTES = 4 * 1024 * 1024  # about 4,000 rows
_EVERY_S = 0.5
_RETRY_S, _RETRY_MAX_S = 1.0, 30.0


class ReceiverAway(Exception):
    """Not now: the same piece is sent again."""


class PieceRefused(Exception):
    """Something in it will never be taken."""


class Receiver(Protocol):
    """Takes whole lines; it must know a piece by its name when it comes again."""

    def take(self, lines: bytes, name: str) -> None:
        """Raises ReceiverAway or PieceRefused."""


class FileOffsets(msgspec.Struct):
    """How far a file has come, in bytes."""

    sent: int = 0
    until: int = 0  # what is under way ends here; as `sent`: nothing is


_decoder = msgspec.json.Decoder(dict[str, FileOffsets])


class Shipping:
    """A thread of its own from `start` to `close`; counters are read by anybody."""

    def __init__(self, directory: Path, name: str, receiver: Receiver, *, piece_bytes: int = PIECE_BYTES) -> None:
        """`name` tells several receivers of one directory apart: each has its own place in every file."""
        self.written_total = 0  # rows that the receiver has
        self.dropped_total = {"spool": 0, "torn": 0, "refused": 0}
        self.waiting_bytes = 0  # in all files, as last looked; 0 in a process that does not ship
        self.is_away = False
        self._directory = directory
        self._position_file = directory / f"{name}.position"
        self._lock_file = directory / f"{name}.lock"
        self._receiver = receiver
        self._piece_bytes = piece_bytes
        self._offsets: dict[str, FileOffsets] = {}
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._ship_until_stopped, name="trace shipping", daemon=True)
        self._thread.start()

    def close(self, within_s: float = 2.0) -> None:
        """Once more, as far as there is time; the rest is the successor's."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(within_s)

    def count_lost(self, path: Path) -> None:
        """A file is about to be removed: rows of it that were not sent are lost."""
        place = self._read_offsets().get(path.name, FileOffsets())
        try:
            with path.open("rb") as file:
                file.seek(place.sent)
                lost = sum(block.count(b"\n") for block in iter(lambda: file.read(self._piece_bytes), b""))
        except FileNotFoundError:
            return
        if lost:
            self.dropped_total["spool"] += lost
            _log.warning("%d request traces are lost: the spool is full, and %s was not sent", lost, path.name)

    # the thread

    def _ship_until_stopped(self) -> None:
        wait_s = _EVERY_S
        while not self._stop.wait(wait_s):
            wait_s = self._try(wait_s)
        self._try(_EVERY_S)

    def _try(self, waited_s: float) -> float:
        """One round; how long to wait for the next."""
        try:
            self.ship()
        except (ReceiverAway, OSError) as error:
            if not self.is_away:
                _log.warning("request traces wait on disk (%s): %s", self._position_file.stem, error)
            self.is_away = True
            return min(_RETRY_MAX_S, max(_RETRY_S, 2 * waited_s))
        if self.is_away:
            _log.info("request traces go out again (%s)", self._position_file.stem)
        self.is_away = False
        return _EVERY_S

    def ship(self) -> None:
        """Everything that is there, unless another process ships; raises ReceiverAway and OSError."""
        if not self._directory.is_dir():
            return
        with held(self._lock_file) as mine:
            self.waiting_bytes = 0
            if not mine:
                return
            self._offsets = self._read_offsets()
            try:
                for path in sorted(self._directory.glob(PATTERN)):
                    self._ship_file(path)
            finally:
                self._look_at_waiting()

    def _ship_file(self, path: Path) -> None:
        place = self._offsets.setdefault(path.name, FileOffsets())
        if (size_of(path) or 0) <= place.sent:
            return
        finished = is_finished(path)  # before it is read: what is there then is all
        try:
            with path.open("rb") as file:
                while lines := self._next_piece(file.fileno(), place):
                    self._send(path.name, place, lines)
                rest = os.pread(file.fileno(), LINE_MAX_BYTES, place.sent)
        except FileNotFoundError:
            return  # removed for want of room, and counted by who did it
        if rest and finished:
            self.dropped_total["torn"] += 1
            place.sent = place.until = place.sent + len(rest)
            self._write_offsets()

    def _next_piece(self, descriptor: int, place: FileOffsets) -> bytes:
        """Whole lines: those that were under way, else as many as a piece has."""
        if place.until > place.sent:
            return os.pread(descriptor, place.until - place.sent, place.sent)
        data = os.pread(descriptor, self._piece_bytes, place.sent)
        return data[: data.rfind(b"\n") + 1]

    def _send(self, file_name: str, place: FileOffsets, lines: bytes) -> None:
        place.until = place.sent + len(lines)
        self._write_offsets()
        self._deliver(file_name, place.sent, lines)
        place.sent = place.until
        self._write_offsets()

    def _deliver(self, file_name: str, start: int, lines: bytes) -> None:
        try:
            self._receiver.take(lines, _name(file_name, start, lines))
            self.written_total += lines.count(b"\n")
        except PieceRefused as error:
            first, second = _halves(lines)
            if not second:
                self.dropped_total["refused"] += 1
                _log.warning("a request trace was refused: %s", error)
                return
            self._deliver(file_name, start, first)
            self._deliver(file_name, start + len(first), second)

    def _look_at_waiting(self) -> None:
        sizes = {path.name: size_of(path) or 0 for path in self._directory.glob(PATTERN)}
        self.waiting_bytes = sum(max(0, size - self._place(name).sent) for name, size in sizes.items())

    def _place(self, name: str) -> FileOffsets:
        return self._offsets.get(name, FileOffsets())

    # the position on disk

    def _read_offsets(self) -> dict[str, FileOffsets]:
        try:
            return _decoder.decode(self._position_file.read_bytes())
        except FileNotFoundError:
            return {}
        except msgspec.DecodeError as error:
            _log.warning("%s is not readable, and all files are sent again: %s", self._position_file, error)
            return {}

    def _write_offsets(self) -> None:
        """By rename, and of files that are still there."""
        kept = {name: place for name, place in self._offsets.items() if (self._directory / name).exists()}
        partial = self._position_file.with_suffix(".partial")
        with partial.open("wb") as file:
            file.write(msgspec.json.encode(kept))
            file.flush()
            os.fdatasync(file.fileno())
        partial.replace(self._position_file)


def _name(file_name: str, start: int, lines: bytes) -> str:
    """Of a piece. With its content: in pods, files of several gateways may be called the same."""
    return f"{file_name}:{start}-{start + len(lines)}:{xxhash.xxh3_64_hexdigest(lines)}"


def _halves(lines: bytes) -> tuple[bytes, bytes]:
    """Of some lines; the second is empty where there is one line only."""
    end = lines.find(b"\n", len(lines) // 2) + 1
    if end == len(lines):
        end = lines.rfind(b"\n", 0, len(lines) - 1) + 1
    return (lines[:end], lines[end:]) if 0 < end < len(lines) else (lines, b"")
