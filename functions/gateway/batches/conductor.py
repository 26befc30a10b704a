"""Takes up batches: those made here at once, and those that nobody has touched for a while, wherever they were made.

A gateway that is killed leaves its batches as they were; any other, or itself when it is back, finds their markers
unchanged and claims them, one of several that try. A store that cannot be read says nothing about anybody.
"""

import asyncio
import contextlib
import logging
import secrets

from functions.artifacts.errors import StoreUnavailable
from functions.decisions import batch_moves
from functions.decisions.batch_choice import Markers, OpenBatch, choose
from functions.decisions.batch_record import BatchRecord
from functions.gateway.batches.log import LogBroken, Overtaken
from functions.gateway.batches.run import BatchRun
from functions.gateway.batches.shared import Shared
from functions.gateway.routes import CHAT, COMPLETIONS, EMBEDDINGS, RESPONSES_ROUTE, Route

_log = logging.getLogger(__name__)
ENDPOINTS: dict[str, Route] = {route.path: route for route in (CHAT, COMPLETIONS, EMBEDDINGS, RESPONSES_ROUTE)}
_LEAVE_S = 10.0


class Conductor:
    """Owned by one event loop."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._owner = f"{shared.gateway.gateway_id}-{secrets.token_hex(4)}"
        self._markers = Markers()
        self._runs: dict[str, BatchRun] = {}
        self._told: dict[str, OpenBatch] = {}
        self._wake = asyncio.Event()
        self._all_left = asyncio.Event()
        self._is_leaving = False

    async def run(self) -> None:
        """Until cancelled. Raises StoreUnavailable where the store cannot be read: then it starts anew."""
        while not self._is_leaving:
            await self._look()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._shared.limits.look_s * (0.75 + self._shared.dice() / 2)):
                    await self._wake.wait()
            self._wake.clear()

    def said(self, record: BatchRecord) -> None:
        """A batch was made or cancelled here: no need to wait for a look."""
        run = self._runs.get(record.id)
        if run is not None:
            run.look()
        elif not record.owner:
            self._told[record.id] = OpenBatch(record.tenant, record.id, 0.0)
            self._wake.set()

    async def leave(self) -> None:
        """The process is to end: take up nothing, and let what runs stop where another can go on."""
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

    async def _look(self) -> None:
        limits, told = self._shared.limits, dict(self._told)
        try:
            found = await self._shared.log.all_open()
        except StoreUnavailable:
            self._markers.forget()
            raise
        still_open = {one.id for one in found}
        for batch_id in told.keys() - still_open:
            del self._told[batch_id]
        idle = {one.id: one for one in self._markers.look(found, self._shared.gateway.clock())}
        idle |= {one.id: one for one in told.values() if one.id in still_open}
        waiting = [one for one in idle.values() if one.id not in self._runs]
        mine = [run.tenant for run in self._runs.values()]
        for one in choose(waiting, mine, limits.running - len(self._runs), limits.running_per_tenant):
            self._told.pop(one.id, None)
            await self._take(one)

    async def _take(self, found: OpenBatch) -> None:
        log, now_s = self._shared.log, int(self._shared.gateway.wall_clock())
        latest = await log.latest(found.tenant, found.id)
        if latest is None or latest.is_over:  # never begun, or its end was not seen to the last
            await self._shared.log.forget(found.tenant, found.id)
            return
        claim = batch_moves.claimed(latest, self._owner, now_s)
        try:
            await log.append(claim)
        except (Overtaken, LogBroken):
            return  # another was faster
        self._shared.metrics.taken()
        self._begin(claim)

    def _begin(self, claim: BatchRecord) -> None:
        run = self._runs[claim.id] = BatchRun(self._shared, claim, ENDPOINTS[claim.endpoint])
        self._shared.gateway.tasks.once("batch", self._run(claim, run))

    async def _run(self, claim: BatchRecord, run: BatchRun) -> None:
        try:
            await run.run()
        finally:
            del self._runs[claim.id]
            self._wake.set()  # a place is free
            if self._is_leaving and not self._runs:
                self._all_left.set()
