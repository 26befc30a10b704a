"""Run of one batch by this process, until the batch is over or another process owns it.

    claimed -> validated -> every line sent -> composed -> over
                  |             |
                  '-------------'--> cancelled or expired: available results are composed

During the run it touches the batch's marker, so that others do not consider the batch abandoned. It also checks for
records after its own: after a request to cancel it stops sending, and after another owner's claim it stops
immediately and writes no more. If it is killed at any line, the next owner finds the log and the parts. Only results
that were not durable are requested again, at most `undurable_lines`.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from functions.api.ids import KeyId, TenantId
from functions.artifacts.errors import ArtifactMissing, StoreRefused, StoreUnavailable
from functions.decisions.batch import record as batch_moves
from functions.decisions.batch.choice import HEARTBEAT_S
from functions.decisions.batch.pace import BatchPace
from functions.decisions.batch.record import BatchRecord, LineProblem, Status
from functions.gateway.batch.composing import Composing, forget_files
from functions.gateway.batch.line_round import LineRound, Stopped
from functions.gateway.batch.line_sender import LineSender
from functions.gateway.batch.log import BatchProgress, LogBroken, Overtaken
from functions.gateway.batch.pacer import LinePacer
from functions.gateway.batch.parts import PartMissing, ResultParts
from functions.gateway.batch.shared import BatchServices
from functions.gateway.batch.validation import Validation, line_bytes
from functions.gateway.errors import RequestRejected
from functions.gateway.intake.routes import Route
from functions.telemetry.repeats import kind_of

_log = logging.getLogger(__name__)
_AGAIN_S = 1.0
_REFUSED_AGAIN_S = 30.0  # the store is reachable but rejects writes: an operator must act
_ROUNDS = 3  # passes through the input file while lines have no result
_LEAVE_S = 5.0

_Got = TypeVar("_Got")


class BatchRun:
    """`record` is the claim of this run. Call `run` once; after an exception a later claim can continue."""

    def __init__(self, shared: BatchServices, record: BatchRecord, route: Route) -> None:
        self._shared = shared
        self._services = shared.services
        self._record = record
        self._route = route
        self._parts = ResultParts(shared.store, record, shared.limits, shared.services.clock)
        pace = BatchPace(float(shared.limits.lines_in_flight_per_batch))
        tenant = TenantId(record.tenant)
        self.pacer = LinePacer(
            shared.services,
            tenant,
            pace,
            slots=shared.slots,
            answers=shared.answers,
            open_batches=shared.open_batches,
            clock=shared.services.clock,
        )
        self._pace = pace
        self._moving = asyncio.Lock()
        self._is_looked_for, self._has_update = asyncio.Event(), asyncio.Event()
        self._is_recalled = self._is_cancelled = self._is_leaving = False
        self._leave_by_s = 0.0

    @property
    def tenant(self) -> str:
        return self._record.tenant

    async def run(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                beside = [group.create_task(self._heartbeat()), group.create_task(self._watch())]
                await self._work()
                for task in beside:
                    task.cancel()
            if self._record.is_over:  # the heartbeat has stopped, so the marker is not touched again
                await self._retry(self._close)
        except* (Overtaken, LogBroken) as overtaken:
            _log.warning("batch %s continues at another gateway: %s", self._record.id, overtaken.exceptions[0])
            if overtaken.subgroup(Overtaken) is not None:
                await self._delete_outputs()

    def leave(self) -> None:
        """Request that the run stops within _LEAVE_S, because the process will end; answers so far become durable."""
        if self._is_leaving:
            return
        self._is_leaving = True
        self._leave_by_s = self._services.clock() + _LEAVE_S

    def request_check(self) -> None:
        """Request that the run checks the log without waiting for the next interval: the batch may have changed."""
        self._is_looked_for.set()

    # transitions between statuses

    async def _work(self) -> None:
        await self._retry(self._recall)
        if self._record.status == "validating":
            await self._validate()
        if self._record.status == "in_progress":
            await self._send_all_lines()
        if self._record.status in ("finalizing", "cancelling"):
            await self._retry(self._put_together)
        if not self._record.is_over:
            return  # another gateway will continue
        self._shared.metrics.count_ended(self._record.status)
        _log.info("batch %s is %s", self._record.id, self._record.status)

    async def _recall(self) -> None:
        await self._parts.recall()
        self._is_recalled = True
        self._has_update.set()

    async def _close(self) -> None:
        await self._shared.store.delete(self._parts.keys)
        await forget_files(self._shared.store, self._record.tenant, batch_moves.unnamed_files(self._record))
        await self._shared.log.close(self._record)

    async def _delete_outputs(self) -> None:
        """Delete the record's output files if it is finalizing or cancelling: no record will name them.

        An unavailable store is only logged.
        """
        record = self._record
        if record.status not in ("finalizing", "cancelling"):
            return
        try:
            await forget_files(self._shared.store, record.tenant, [record.output_file_id, record.error_file_id])
        except StoreUnavailable as error:
            _log.warning("batch %s: unused output files could not be deleted: %s", record.id, error)

    async def _validate(self) -> None:
        validation = await self._retry(self._validation)
        problems = await validation.run()
        if problems:
            await self._move(lambda record: batch_moves.failed(record, problems, self._now()), "validating")
        else:
            await self._move(lambda record: batch_moves.validated(record, validation.lines, self._now()), "validating")

    async def _validation(self) -> Validation:
        return Validation(self._services, self._shared.store, self._record, self._route)

    async def _send_all_lines(self) -> None:
        """Send every line without a durable result, in at most _ROUNDS rounds; return after all answers are durable.

        Then the record is moved on, unless this run is leaving: completed or expired, or failed if the input file was
        deleted.
        """
        record = self._record
        ends_as: Status = "completed"
        try:
            with self._services.intake.delegated.issued(TenantId(record.tenant), KeyId(record.key_id)) as credential:
                for _ in range(_ROUNDS):
                    if not await self._round(credential).run():
                        ends_as = "expired"
                        break
                    if self._parts.done.tally.done == record.lines:
                        break
        except* ArtifactMissing:
            problem = LineProblem("file_not_found", "The input file was deleted.")
            await self._move(lambda record: batch_moves.failed(record, (problem,), self._now()), "in_progress")
        if not self._is_leaving:
            await self._move(lambda record: batch_moves.ended(record, ends_as, self._now()), "in_progress")

    def _check_time(self) -> None:
        if self._is_leaving and self._services.clock() >= self._leave_by_s:
            raise Stopped
        if self._is_cancelled or self._now() >= self._record.expires_s:
            raise Stopped

    async def _put_together(self) -> None:
        shared, record = self._shared, self._record
        composing = Composing(shared.store, shared.shelf, record, line_bytes(self._services), shared.metrics)
        try:
            composed = await composing.run(self._parts, self._services.wall_clock(), self._check_log)
        except PartMissing:
            await self._check_log()  # raises if another process ended the batch, which explains the missing part
            await self._parts.recall()
            raise
        await self._move(
            lambda latest: batch_moves.finished(
                latest, composed.tally, self._now(), has_output=composed.has_output, has_errors=composed.has_errors
            ),
            record.status,
        )

    def _round(self, credential: str) -> LineRound:
        shared = self._shared
        sender = LineSender(
            shared.services.clock,
            shared.handle,
            self._route,
            self._record.id,
            self._record.claims,
            credential,
            self._pace,
            self.pacer,
            shared.metrics,
            shared.uniform,
        )
        return LineRound(
            shared,
            self._record,
            self._parts,
            sender,
            check_time=self._check_time,
            may_begin=lambda: not self._is_leaving,
        )

    # communication with other processes

    async def _heartbeat(self) -> None:
        while True:
            try:
                await self._shared.log.touch(self._record, await self._progress())
            except StoreUnavailable as error:
                self._warn_once("its marker could not be touched", error)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(HEARTBEAT_S):
                    await self._has_update.wait()
            self._has_update.clear()

    async def _progress(self) -> BatchProgress:
        """Return the progress for the marker. Until the parts are recalled, it is what the marker already says."""
        record = self._record
        before = None
        if not self._is_recalled:
            with contextlib.suppress(LogBroken):  # then this run's own progress is used
                before = await self._shared.log.progress(record.tenant, record.id)
        return before or BatchProgress(record.input_file_id, record.lines, self._parts.done.tally)

    async def _watch(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._shared.limits.watch_s):
                    await self._is_looked_for.wait()
            self._is_looked_for.clear()
            try:
                await self._check_log()
            except StoreUnavailable as error:
                self._warn_once("its log could not be read", error)

    async def _check_log(self) -> None:
        async with self._moving:
            latest = await self._shared.log.record_after(self._record)
            if latest is not None:
                self._apply_record(latest)

    def _apply_record(self, latest: BatchRecord) -> None:
        """Apply a record that another process wrote, which may be a request to cancel.

        Raises Overtaken if it has another owner or claim.
        """
        if latest.owner != self._record.owner or latest.claims != self._record.claims:
            raise Overtaken(latest)
        self._record = latest
        if latest.status == "cancelling":
            self._is_cancelled = True

    async def _move(self, move: Callable[[BatchRecord], BatchRecord], expected: str) -> None:
        """Append the record that `move` makes of the latest one; do nothing if its status is not `expected`.

        If another process appended one first, that one is applied instead.
        """

        async def moved() -> None:
            async with self._moving:
                if self._record.status != expected:
                    return
                following = move(self._record)
                try:
                    await self._shared.log.append(following)
                    self._record = following
                    self._has_update.set()
                except Overtaken as overtaken:
                    self._apply_record(overtaken.latest)

        await self._retry(moved)

    async def _retry(self, work: Callable[[], Awaitable[_Got]]) -> _Got:
        """Call `work` until it neither fails for an unavailable store nor is rejected; return its result."""
        while True:
            try:
                return await work()
            except (StoreUnavailable, RequestRejected) as error:
                self._warn_once("waiting for the store", error)
                await asyncio.sleep(_REFUSED_AGAIN_S if isinstance(error, StoreRefused) else _AGAIN_S)

    def _warn_once(self, what: str, error: Exception) -> None:
        """Log an error, unless one of the same kind was logged recently, for this batch or another."""
        if self._shared.repeats.is_new(f"{what} {kind_of(error)}", self._services.clock()):
            _log.warning("batch %s: %s: %s; not logged again for other batches", self._record.id, what, error)

    def _now(self) -> int:
        return int(self._services.wall_clock())
