"""One pass through a batch's input file: sends every line without a durable result.

The number of lines under way is limited by memory, and by how many results a kill may cost (`undurable_lines`). A
pass ends when all of its lines are answered or when the run stops it. Then lines under way are aborted, and all
received answers become durable.

Neighbours: `run` makes passes until no line is left; `line_sender` sends one line; `parts` stores results.
"""

import asyncio
import contextlib
from collections.abc import Callable

import orjson

from functions.decisions.batch.lines import Line, RawLine, read_line
from functions.decisions.batch.record import BatchRecord
from functions.gateway.batch.line_sender import LineRequest, LineSender
from functions.gateway.batch.parts import ResultParts
from functions.gateway.batch.reading import lines_of
from functions.gateway.batch.shared import BatchServices
from functions.gateway.batch.validation import line_bytes

_LOOK_S = 0.05
_TASKS_PER_SLOT = 2  # lines waiting for a slot per line in flight


class Stopped(Exception):
    """No further line is sent: the batch is cancelled, its time is over, or its gateway is leaving."""


class LineRound:
    """One pass; call `run` once. `check_time` raises Stopped; no line starts while `may_begin` returns False."""

    def __init__(
        self,
        shared: BatchServices,
        record: BatchRecord,
        parts: ResultParts,
        sender: LineSender,
        *,
        check_time: Callable[[], None],
        may_begin: Callable[[], bool],
    ) -> None:
        self._shared = shared
        self._record = record
        self._parts = parts
        self._sender = sender
        self._check_time = check_time
        self._may_begin = may_begin
        self._under_way: set[asyncio.Task[None]] = set()

    async def run(self) -> bool:
        """Send all lines that are to be sent and write their results; return False if the round was stopped early."""
        self._parts.resume()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._parts.write_until_stopped())
            try:
                await self._send_all(group)
            except Stopped:
                return False
            finally:
                await self._abort()
                self._parts.stop()
        return True

    async def _send_all(self, group: asyncio.TaskGroup) -> None:
        record, shared = self._record, self._shared
        async for raw in lines_of(shared.store, record.tenant, record.input_file_id, line_bytes(shared.services)):
            if raw.ordinal in self._parts.done or raw.text is None:
                continue
            request = _request(raw, record.endpoint)
            if request is not None:
                await self._until_headroom(len(request.body))
                self._start_line(request, group)
        while self._under_way:
            self._check_time()
            await asyncio.sleep(_LOOK_S)

    def _start_line(self, request: LineRequest, group: asyncio.TaskGroup) -> None:
        held = contextlib.ExitStack()
        held.enter_context(self._shared.bodies.reserved(self._record.tenant, len(request.body)))

        async def send() -> None:
            self._parts.add(await self._sender.send_until_done(request))

        task = group.create_task(send())
        task.add_done_callback(lambda _: held.close())
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def _until_headroom(self, size_bytes: int) -> None:
        """Wait until another line may be held and sent within the limits of memory and undurable lines."""
        limits = self._shared.limits
        while True:
            self._check_time()
            waiting = len(self._under_way)
            if (
                self._may_begin()
                and waiting < _TASKS_PER_SLOT * limits.lines_in_flight_per_batch
                and waiting + self._parts.undurable < limits.undurable_lines
                and not self._parts.is_heavy
                and (not waiting or self._shared.bodies.is_free(self._record.tenant, size_bytes))
            ):
                return
            await asyncio.sleep(_LOOK_S)

    async def _abort(self) -> None:
        lines = list(self._under_way)
        for line in lines:
            line.cancel()
        await asyncio.gather(*lines, return_exceptions=True)


def _request(raw: RawLine, endpoint: str) -> LineRequest | None:
    """Return the request for a line of the input file, or None if it is unreadable, which is reported at the end."""
    try:
        line = read_line(raw, orjson.loads(raw.text or b""), endpoint)
    except orjson.JSONDecodeError:
        return None
    return LineRequest(line.ordinal, line.custom_id, orjson.dumps(line.body)) if isinstance(line, Line) else None
