"""Shipping of trace files: each line is delivered to a receiver exactly once, even if a process is killed.

    files ──► position: "from here to there is under way" ──► the receiver ──► position: "up to there it has them"

A piece is some whole lines of one file. Its ends are stored before it is sent. Until the receiver confirms it, the
piece is sent again with the same ends and the same name, by which the receiver recognises a repetition. A shipper
that is killed between the confirmation and its record therefore duplicates nothing.

One process ships a directory: the one that holds its lock. A gateway's successor continues with the remaining
files, including half lines at the ends of files that no process writes any more (`torn`). An unavailable receiver
costs time, and rows only if their files are removed for lack of room (`spool`). If a receiver refuses rows, the
piece is halved until the bad row is alone (`refused`).

Neighbours: `trace_files` has the files and their limit; `store.client` and `otlp` are receivers.
"""

import logging
import os
import threading
from pathlib import Path
from typing import Protocol

import msgspec
import xxhash

from functions.telemetry.trace_files import is_finished, size_of, try_lock
from functions.telemetry.trace_row import LINE_MAX_BYTES, PATTERN

_log = logging.getLogger(__name__)
PIECE_BYTES = 4 * 1024 * 1024  # about 4,000 rows
_EVERY_S = 0.5
_RETRY_S, _RETRY_MAX_S = 1.0, 30.0


class ReceiverAway(Exception):
    """The receiver is unavailable now: the same piece is sent again."""


class PieceRefused(Exception):
    """The piece has something that the receiver will never accept."""


class Receiver(Protocol):
    """A destination of whole lines, which must recognise a repeated piece by its name."""

    def receive(self, lines: bytes, name: str) -> None:
        """Store a piece of whole lines, ignoring one whose name it has already; raises ReceiverAway or PieceRefused."""


class FileOffsets(msgspec.Struct):
    """Shipping position in a file, in bytes."""

    sent: int = 0
    until: int = 0  # end of the piece under way; equal to `sent` if there is none


_decoder = msgspec.json.Decoder(dict[str, FileOffsets])


class Shipping:
    """Ship files in a thread of its own, from `start` to `close`; any thread may read the counters."""

    def __init__(self, directory: Path, name: str, receiver: Receiver, *, piece_bytes: int = PIECE_BYTES) -> None:
        """`name` distinguishes several receivers of one directory: each has its own position in every file."""
        self.written_total = 0  # rows that the receiver has
        self.dropped_total = {"spool": 0, "torn": 0, "refused": 0}
        self.waiting_bytes = 0  # in all files, as of the last round; 0 in a process that does not ship
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
        """Stop the thread, which ships once more if that ends in `within_s`; the successor ships the rest."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(within_s)

    def count_lost(self, path: Path) -> None:
        """Count the unsent rows of a file that is about to be removed as dropped, and log a warning if there are
        any."""
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

    # Methods of the thread.

    def _ship_until_stopped(self) -> None:
        wait_s = _EVERY_S
        while not self._stop.wait(wait_s):
            wait_s = self._ship_once(wait_s)
        self._ship_once(_EVERY_S)

    def _ship_once(self, waited_s: float) -> float:
        """Run one round and return the seconds until the next one, which grow while the receiver is away; log when it
        goes away and when it is back."""
        try:
            self.ship()
        except (ReceiverAway, OSError) as error:
            if not self.is_away:
                _log.warning("request traces wait on disk (%s): %s", self._position_file.stem, error)
            self.is_away = True
            return min(_RETRY_MAX_S, max(_RETRY_S, 2 * waited_s))
        if self.is_away:
            _log.info("request traces are delivered again (%s)", self._position_file.stem)
        self.is_away = False
        return _EVERY_S

    def ship(self) -> None:
        """Ship all whole lines of the directory's files, unless another process ships; raises ReceiverAway and
        OSError."""
        if not self._directory.is_dir():
            return
        with try_lock(self._lock_file) as mine:
            self.waiting_bytes = 0
            if not mine:
                return
            self._offsets = self._read_offsets()
            try:
                for path in sorted(self._directory.glob(PATTERN)):
                    self._ship_file(path)
            finally:
                self._measure_waiting()

    def _ship_file(self, path: Path) -> None:
        place = self._offsets.setdefault(path.name, FileOffsets())
        if (size_of(path) or 0) <= place.sent:
            return
        finished = is_finished(path)  # checked before reading: a finished file does not grow
        try:
            with path.open("rb") as file:
                while lines := self._next_piece(file.fileno(), place):
                    self._send(path.name, place, lines)
                rest = os.pread(file.fileno(), LINE_MAX_BYTES, place.sent)
        except FileNotFoundError:
            return  # removed for lack of room, and counted by the process that did so
        if rest and finished:
            self.dropped_total["torn"] += 1
            place.sent = place.until = place.sent + len(rest)
            self._write_offsets()

    def _next_piece(self, descriptor: int, place: FileOffsets) -> bytes:
        """Return whole lines: the piece under way, else as many lines as a piece may have; empty if no line is
        complete."""
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
            self._receiver.receive(lines, _name(file_name, start, lines))
            self.written_total += lines.count(b"\n")
        except PieceRefused as error:
            first, second = _halves(lines)
            if not second:
                self.dropped_total["refused"] += 1
                _log.warning("a request trace was refused: %s", error)
                return
            self._deliver(file_name, start, first)
            self._deliver(file_name, start + len(first), second)

    def _measure_waiting(self) -> None:
        sizes = {path.name: size_of(path) or 0 for path in self._directory.glob(PATTERN)}
        self.waiting_bytes = sum(max(0, size - self._place(name).sent) for name, size in sizes.items())

    def _place(self, name: str) -> FileOffsets:
        return self._offsets.get(name, FileOffsets())

    # Position file.

    def _read_offsets(self) -> dict[str, FileOffsets]:
        try:
            return _decoder.decode(self._position_file.read_bytes())
        except FileNotFoundError:
            return {}
        except msgspec.DecodeError as error:
            _log.warning("%s is not readable, and all files are sent again: %s", self._position_file, error)
            return {}

    def _write_offsets(self) -> None:
        """Replace the position file atomically; files that are gone are left out."""
        kept = {name: place for name, place in self._offsets.items() if (self._directory / name).exists()}
        partial = self._position_file.with_suffix(".partial")
        with partial.open("wb") as file:
            file.write(msgspec.json.encode(kept))
            file.flush()
            os.fdatasync(file.fileno())
        partial.replace(self._position_file)


def _name(file_name: str, start: int, lines: bytes) -> str:
    """Return the name of a piece. It includes a hash of the content: in pods, files of several gateways may have
    one name."""
    return f"{file_name}:{start}-{start + len(lines)}:{xxhash.xxh3_64_hexdigest(lines)}"


def _halves(lines: bytes) -> tuple[bytes, bytes]:
    """Split lines into two halves of about equal size; the second is empty if there is only one line."""
    end = lines.find(b"\n", len(lines) // 2) + 1
    if end == len(lines):
        end = lines.rfind(b"\n", 0, len(lines) - 1) + 1
    return (lines[:end], lines[end:]) if 0 < end < len(lines) else (lines, b"")
