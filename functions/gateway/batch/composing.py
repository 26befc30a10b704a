"""Composition of a batch's output and error files from its parts. Each line is written once; then parts may be
deleted.

Both files are written while the parts are read, with a few MiB of each in memory. A process that is killed
meanwhile leaves nothing that counts. The next owner writes files of its own, which count once the batch's final
record names them, and deletes the earlier ones. A process that was only delayed finds its parts deleted or the log
advanced, and writes nothing.

A line without a result after all lines were sent (a part was lost, or the input file reads differently now) is
reported in the error file.
"""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import orjson

from functions.artifacts.errors import ArtifactMissing
from functions.artifacts.s3_large import LargeWriter
from functions.decisions.batch.lines import Line, RawLine, read_line
from functions.decisions.batch.parts import Done
from functions.decisions.batch.record import BatchRecord, Tally
from functions.gateway.batch.files import names
from functions.gateway.batch.files.shelf import Shelf
from functions.gateway.batch.files.store import FileStore
from functions.gateway.batch.line_sender import result_text
from functions.gateway.batch.parts import ResultParts
from functions.gateway.batch.reading import lines_of
from functions.gateway.batch.shared import BatchMetrics

_log = logging.getLogger(__name__)
_EXPIRED = {
    "code": "batch_expired",
    "message": "This request could not be executed before the completion window expired.",
}
_LOST = {
    "code": "result_lost",
    "message": "The result of this request could not be stored. Send it again.",
}


@dataclass(frozen=True, slots=True)
class Composed:
    tally: Tally
    has_output: bool
    has_errors: bool


class Composing:
    """Composes the files of one batch; call `run` once."""

    def __init__(
        self, store: FileStore, shelf: Shelf, record: BatchRecord, max_line_bytes: int, metrics: BatchMetrics
    ) -> None:
        self._store = store
        self._shelf = shelf
        self._record = record
        self._max_line_bytes = max_line_bytes
        self._metrics = metrics
        self._output = shelf.open_writer(record.tenant, record.output_file_id)
        self._errors = shelf.open_writer(record.tenant, record.error_file_id)

    async def run(self, parts: ResultParts, now_unix_s: float, check_holder: Callable[[], Awaitable[None]]) -> Composed:
        """Compose and store the batch's output and error files from its parts; return the counts and which files exist.

        `check_holder` is called before each file is finished and raises if another gateway owns the batch. If a part
        is missing (PartMissing), no file is written.
        """
        done = Done()
        try:
            for key in parts.keys:
                await self._append_part(done, parts, key)
            tally = done.tally
            if self._record.status == "finalizing" and tally.done != self._record.lines:
                tally = tally.plus(Tally(failed=await self._write_missing_lines(done)))
            await check_holder()
            has_output = await self._finish_file(self._output, self._record.output_file_id, "output", now_unix_s)
            await check_holder()
            has_errors = await self._finish_file(self._errors, self._record.error_file_id, "errors", now_unix_s)
        finally:
            for writer in (self._output, self._errors):
                await self._store.call(writer.abort)
        return Composed(tally, has_output, has_errors)

    async def _append_part(self, done: Done, parts: ResultParts, key: str) -> None:
        answers, failures = bytearray(), bytearray()
        for result in done.add_new(await parts.read(key)):
            (answers if result.is_success else failures).extend(result.text + b"\n")
        await self._store.call(self._output.write, bytes(answers))
        await self._store.call(self._errors.write, bytes(failures))

    async def _write_missing_lines(self, done: Done) -> int:
        """Write a line to the error file for each line without a result, and return their number.

        If the input file was deleted, the lines that could not be read are not reported.
        """
        record, told = self._record, 0
        why = _EXPIRED if record.ends_as == "expired" else _LOST
        try:
            async for raw in lines_of(self._store, record.tenant, record.input_file_id, self._max_line_bytes):
                if raw.ordinal >= record.lines:
                    break
                if raw.ordinal in done:
                    continue
                text = result_text(record.id, _line(raw, record.endpoint), None, why)
                await self._store.call(self._errors.write, text + b"\n")
                self._metrics.count_line("expired" if why is _EXPIRED else "failed")
                told += 1
        except ArtifactMissing:
            _log.warning("batch %s: its input file was deleted: lines without a result are not reported", record.id)
        if told:
            _log.warning("batch %s: %d lines have no result: %s", record.id, told, why["code"])
        return told

    async def _finish_file(self, writer: LargeWriter, file_id: str, what: str, now_unix_s: float) -> bool:
        if not writer.written_bytes:
            return False
        await self._store.call(writer.finish)
        await self._shelf.save_record(
            self._record.tenant,
            file_id,
            size_bytes=writer.written_bytes,
            filename=f"{self._record.id}_{what}.jsonl",
            purpose="batch_output",
            now_unix_s=now_unix_s,
            expiry_s=self._record.output_expiry_s,
        )
        return True


async def forget_files(store: FileStore, tenant: str, file_ids: list[str]) -> None:
    """Delete these files' records, then their contents. A missing object counts as deleted."""
    await store.delete([names.record_key(tenant, one) for one in file_ids])
    await store.delete([names.content_key(tenant, one) for one in file_ids])


def _line(raw: RawLine, endpoint: str) -> Line:
    """Return the parsed line; if its text is unreadable now, a line with its number only."""
    try:
        line = read_line(raw, orjson.loads(raw.text or b""), endpoint)
    except orjson.JSONDecodeError:
        line = None
    return line if isinstance(line, Line) else Line(raw.ordinal, "", {})
