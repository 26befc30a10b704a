"""Sink of trace rows: recent ones stay in memory, and all are written to disk if there is a directory. It never
blocks.

`offer` runs on the event loop once per request, and appends the source of a row to two queues. A thread builds,
encodes and writes the rows a few times a second. Rows that a full disk does not accept are tried again. If the disk
is slower than the traffic, or gone, the oldest waiting rows are dropped and counted.
"""

import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from functions.telemetry.trace_files import PartlyWritten, TraceFiles
from functions.telemetry.trace_row import TraceRow, encode

_log = logging.getLogger(__name__)
_RECENT_ROWS = 512  # about 1 MB
_WAITING_ROWS = 16_384  # five seconds of 3,000 requests/s; about 30 MB
_BATCH_ROWS = 1024  # encoded and written together: 3 ms
_EVERY_S = 0.25
FILE_BYTES = 32 * 1024 * 1024
MAX_BYTES = 8 * FILE_BYTES
WAITING_BYTES = (_WAITING_ROWS + _RECENT_ROWS + _BATCH_ROWS) * 2048  # a row is about 1.9 KB


class Traced(Protocol):
    """The source of a row."""

    def row(self) -> TraceRow: ...


class TraceSink:
    """Queue and write trace rows. `offer`, `recent` and the counters belong to the event loop; `start` and `close`
    to the owner."""

    def __init__(
        self,
        directory: Path | None,
        wall_clock: Callable[[], float],
        *,
        waiting_rows: int = _WAITING_ROWS,
        max_bytes: int = MAX_BYTES,
        sync_every_s: float = 1.0,
        before_removal: Callable[[Path], None] | None = None,
    ) -> None:
        """Create a sink; without a directory only the most recent rows are kept, in memory."""
        self.recent: deque[Traced] = deque(maxlen=_RECENT_ROWS)
        self.dropped_total = 0
        self.spooled_total = 0  # rows on disk
        self._wall_clock = wall_clock
        self._waiting: deque[Traced] = deque()
        self._waiting_max = waiting_rows
        self._files: TraceFiles | None = None
        if directory is not None:
            file_bytes = min(FILE_BYTES, max_bytes // 8)
            self._files = TraceFiles(
                directory, file_bytes, max_bytes, sync_every_s=sync_every_s, before_removal=before_removal
            )
        self._stop = threading.Event()
        self._failing = False
        self._thread: threading.Thread | None = None

    @property
    def waiting_rows(self) -> int:
        return len(self._waiting)

    def start(self) -> None:
        if self._files is not None and self._thread is None:
            self._thread = threading.Thread(target=self._write_until_stopped, name="traces", daemon=True)
            self._thread.start()

    def offer(self, traced: Traced) -> None:
        self.recent.append(traced)
        if self._files is None:
            return
        self._waiting.append(traced)
        if len(self._waiting) > self._waiting_max:
            self._drop_oldest()

    def close(self, within_s: float = 2.0) -> None:
        """Stop the thread, which writes waiting rows for at most `within_s`."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(within_s)

    # Methods of the thread.

    def _write_until_stopped(self) -> None:
        while not self._stop.wait(_EVERY_S):
            self._write_waiting()
        self._write_waiting()
        self.dropped_total += len(self._waiting)  # no thread is left to try again
        if self._files is not None:
            with contextlib.suppress(OSError):
                self._files.close()

    def _write_waiting(self) -> None:
        try:
            while batch := self._next_batch():
                self._write(batch)
            if self._files is not None:
                self._files.sync(self._wall_clock())
        except OSError as error:
            if not self._failing:
                _log.warning("traces cannot be written, and the oldest are dropped until they can: %s", error)
            self._failing = True  # no immediate retry: a failure on a full disk would repeat
        else:
            self._failing = False

    def _write(self, batch: list[Traced]) -> None:
        """Write a batch. If the disk fails, requeue the rows that it did not accept, drop the oldest rows beyond the
        limit, and raise OSError."""
        assert self._files is not None
        written = len(batch)
        try:
            self._files.write([encode(traced.row()) for traced in batch], self._wall_clock())
        except OSError as error:
            written = error.lines if isinstance(error, PartlyWritten) else 0
            self._waiting.extendleft(reversed(batch[written:]))
            while len(self._waiting) > self._waiting_max:
                self._drop_oldest()
            raise
        finally:
            self.spooled_total += written

    def _next_batch(self) -> list[Traced]:
        batch: list[Traced] = []
        while len(batch) < _BATCH_ROWS:
            try:
                batch.append(self._waiting.popleft())
            except IndexError:
                break  # deques are thread-safe, but a check for emptiness is not
        return batch

    def _drop_oldest(self) -> None:
        try:
            self._waiting.popleft()
        except IndexError:
            return  # the thread has just removed them
        self.dropped_total += 1
