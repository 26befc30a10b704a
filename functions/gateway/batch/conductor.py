"""Scheduling of batches on a gateway: batches made here immediately, and abandoned batches of any gateway.

A killed gateway leaves its batches unchanged. Any gateway, or the same one after its restart, finds their markers
unchanged and claims them; one of several succeeds. If the store cannot be read, no batch counts as abandoned. A batch
whose log cannot be read, or whose endpoint this release does not have, is skipped and does not delay others.
"""

import asyncio
import contextlib
import logging
import secrets

from functions.artifacts.errors import StoreUnavailable
from functions.decisions.batch import record as batch_moves
from functions.decisions.batch.choice import Markers, OpenBatch, choose
from functions.decisions.batch.record import BatchRecord, IllegalMove
from functions.gateway.batch.log import BatchProgress, LogBroken, Overtaken
from functions.gateway.batch.run import BatchRun
from functions.gateway.batch.shared import BatchServices
from functions.gateway.intake.routes import CHAT, COMPLETIONS, EMBEDDINGS, RESPONSES_ROUTE, Route

_log = logging.getLogger(__name__)
ENDPOINTS: dict[str, Route] = {route.path: route for route in (CHAT, COMPLETIONS, EMBEDDINGS, RESPONSES_ROUTE)}
_LEAVE_S = 10.0
_PASSED_OVER_S = 60.0  # time until a skipped batch is checked again
# a first record may follow its marker after this time at most; no request waits so long for the store
_UNBEGUN_S = 3600.0


class Conductor:
    """Claims and runs batches on this gateway. Owned by one event loop."""

    def __init__(self, shared: BatchServices) -> None:
        self._shared = shared
        self._owner = f"{shared.services.gateway_id}-{secrets.token_hex(4)}"
        self._markers = Markers()
        self._runs: dict[str, BatchRun] = {}
        self._told: dict[str, OpenBatch] = {}
        self._passed_over: dict[str, float] = {}  # by id: skipped until then
        self._why_passed_over: dict[str, str] = {}  # by id: the reason that was logged
        self._unbegun: dict[str, tuple[float, float]] = {}  # by id: last touch, and since when it has had no record
        self._wake = asyncio.Event()
        self._all_left = asyncio.Event()
        self._is_leaving = False

    async def run(self) -> None:
        """Scan for batches until cancelled or `leave` is called, about every `look_s` and after each notification.

        Raises StoreUnavailable in an outage; then the task is restarted.
        """
        while not self._is_leaving:
            await self._scan()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._shared.limits.look_s * (0.75 + self._shared.uniform() / 2)):
                    await self._wake.wait()
            self._wake.clear()

    def notify_record(self, record: BatchRecord) -> None:
        """Notify the conductor of a batch that was made or cancelled here, so that it need not wait for a scan."""
        run = self._runs.get(record.id)
        if run is not None:
            run.request_check()
        elif not record.owner:
            self._told[record.id] = OpenBatch(record.tenant, record.id, 0.0)
            self._wake.set()

    async def leave(self) -> None:
        """Claim no more batches, stop all runs so that another gateway can continue them, and wait at most _LEAVE_S."""
        self._is_leaving = True
        for run in self._runs.values():
            run.leave()
        if not self._runs:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LEAVE_S):
                await self._all_left.wait()

    @property
    def running(self) -> int:
        return len(self._runs)

    async def _scan(self) -> None:
        limits, told, now_s = self._shared.limits, dict(self._told), self._shared.services.clock()
        try:
            found = await self._shared.log.all_open()
        except StoreUnavailable:
            self._markers.forget()
            raise
        self._shared.open_batches.clear()
        self._shared.open_batches.update(one.tenant for one in found)
        still_open = {one.id for one in found}
        for batch_id in told.keys() - still_open:
            del self._told[batch_id]
        self._forget_all_but(still_open, now_s)
        idle = {one.id: one for one in self._markers.find_idle(found, now_s)}
        abandoned = idle.keys()
        open_now = idle | {one.id: one for one in told.values() if one.id in still_open and one.id not in idle}
        if self._shared.services.state.catalogue is None:
            return  # no line could be validated
        waiting = [one for one in open_now.values() if one.id not in self._runs and one.id not in self._passed_over]
        mine = [run.tenant for run in self._runs.values()]
        for one in choose(waiting, mine, limits.running - len(self._runs), limits.running_per_tenant):
            if self._is_leaving:
                return
            self._told.pop(one.id, None)  # a later notice about it is new
            try:
                await self._try_claim(one, is_abandoned=one.id in abandoned)
            except StoreUnavailable:
                self._told |= {one.id: one} if one.id in told else {}
                raise

    def _forget_all_but(self, still_open: set[str], now_s: float) -> None:
        self._passed_over = {
            one: until_s for one, until_s in self._passed_over.items() if one in still_open and until_s > now_s
        }
        self._why_passed_over = {one: why for one, why in self._why_passed_over.items() if one in still_open}
        self._unbegun = {one: seen for one, seen in self._unbegun.items() if one in still_open}

    async def _try_claim(self, found: OpenBatch, *, is_abandoned: bool) -> None:
        """Claim a batch; do nothing if another gateway was faster. A batch whose log has a problem is passed over."""
        try:
            await self._claim(found, is_abandoned=is_abandoned)
        except Overtaken:
            return  # another gateway was faster
        except (LogBroken, IllegalMove) as error:
            self._pass_over(found, str(error))

    async def _claim(self, found: OpenBatch, *, is_abandoned: bool) -> None:
        log, now_s = self._shared.log, int(self._shared.services.wall_clock())
        latest = await log.latest(found.tenant, found.id)
        if latest is None:
            await self._wait_for_first_record(found)
            return
        if latest.is_over:  # its last owner ended before deleting the marker
            await log.delete_marker(found.tenant, found.id)
            return
        if latest.owner and not is_abandoned:
            return  # made here, but owned by now
        route = ENDPOINTS.get(latest.endpoint)
        if route is None:
            self._pass_over(found, f"this release has no endpoint {latest.endpoint}")
            return
        if is_abandoned:
            await self._touch_before_claim(latest)
        claim = batch_moves.claimed(latest, self._owner, now_s)
        await log.append(claim)
        if self._is_leaving:
            return  # its marker is not touched from now on, so another gateway will continue
        self._shared.metrics.count_claim()
        self._start_run(claim, route)

    async def _touch_before_claim(self, latest: BatchRecord) -> None:
        """Touch the marker before a claim. Raises StoreUnavailable, and no claim is used up.

        If a store accepted records but no markers, gateways would claim the batch from each other until no claims are
        left.
        """
        log = self._shared.log
        progress = None
        with contextlib.suppress(LogBroken):  # then the progress is what the record says
            progress = await log.progress(latest.tenant, latest.id)
        await log.touch(latest, progress or BatchProgress(latest.input_file_id, latest.lines, latest.tally))

    async def _wait_for_first_record(self, found: OpenBatch) -> None:
        """Pass over a batch without a first record, or delete its marker if it was not touched for _UNBEGUN_S."""
        now_s = self._shared.services.clock()
        touched, since_s = self._unbegun.setdefault(found.id, (found.touched, now_s))
        if touched == found.touched and now_s - since_s >= _UNBEGUN_S:
            await self._shared.log.delete_marker(found.tenant, found.id)
            _log.warning("batch %s was dropped: its marker had no record for %.0f s", found.id, _UNBEGUN_S)
            return
        if touched != found.touched:
            self._unbegun[found.id] = (found.touched, now_s)
        self._pass_over(found, "it has a marker and no record yet")

    def _pass_over(self, found: OpenBatch, why: str) -> None:
        if self._why_passed_over.get(found.id) != why:  # logged once; the batch is checked again while it is open
            self._why_passed_over[found.id] = why
            _log.warning("batch %s is skipped, and checked again every %.0f s: %s", found.id, _PASSED_OVER_S, why)
        self._passed_over[found.id] = self._shared.services.clock() + _PASSED_OVER_S

    def _start_run(self, claim: BatchRecord, route: Route) -> None:
        run = self._runs[claim.id] = BatchRun(self._shared, claim, route)
        self._shared.services.tasks.once("batch", self._run(claim, run))

    async def _run(self, claim: BatchRecord, run: BatchRun) -> None:
        try:
            await run.run()
        finally:
            del self._runs[claim.id]
            self._wake.set()  # a slot is free
            if self._is_leaving and not self._runs:
                self._all_left.set()
