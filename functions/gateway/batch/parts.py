"""Result parts: answers count as done only once they are durable in the store.

A part is written when it is full or its oldest answer has waited long enough. While the store is unreachable, the
same part is retried; answers accumulate up to a limit, and no further line starts.
"""

import asyncio
import logging
from collections.abc import Callable

from functions.artifacts.errors import StoreUnavailable
from functions.decisions.batch import parts as batch_parts
from functions.decisions.batch.parts import Done, LineResult, PartCorrupt
from functions.decisions.batch.record import BatchRecord
from functions.gateway.batch.files import names
from functions.gateway.batch.files.store import FileStore
from functions.gateway.batch.limits import BatchLimits
from functions.telemetry.repeats import Repeats, kind_of

_log = logging.getLogger(__name__)
PART_MAX_BYTES = 128 * 1024 * 1024  # one answer may be 32 MiB, and is longer as JSON within JSON
_TICK_S = 0.25
_AGAIN_S = 1.0


class PartMissing(StoreUnavailable):
    """A part has disappeared: the batch may be over elsewhere. Check its log, recall the parts, and start again."""


class ResultParts:
    """Parts of one run. `claim` is the number of the record with which the run claimed the batch."""

    def __init__(self, store: FileStore, record: BatchRecord, limits: BatchLimits, clock: Callable[[], float]) -> None:
        self._store = store
        self._record = record
        self._claim = record.number
        self._limits = limits
        self._clock = clock
        self._repeats = Repeats()
        self._waiting: list[LineResult] = []
        self._waiting_bytes = 0
        self._oldest_s = 0.0
        self._written = 0
        self._writing = 0
        self._is_stopped = False
        self.done = Done()
        self.keys: list[str] = []  # parts to compose, in the order that decides which of two answers counts

    async def recall(self) -> None:
        """Load anew which parts are stored, and which lines they answer, of earlier owners and this one.

        Unreadable parts are logged and ignored.
        """
        self.keys, self.done = [], Done()
        async for page in self._store.pages(names.parts_prefix(self._record.tenant, self._record.id)):
            for one in page:
                try:
                    results = await self.read(one.key)
                except PartMissing as missing:
                    _log.warning("batch %s: %s", self._record.id, missing)
                    continue
                self.keys.append(one.key)
                for _ in self.done.add_new(results):
                    pass

    async def read(self, key: str) -> list[LineResult]:
        found = await self._store.read(key, PART_MAX_BYTES)
        if found is None:
            raise PartMissing(f"there is no {key}")
        try:
            return batch_parts.decode(found)
        except PartCorrupt as error:
            _log.warning("batch %s: %s is not a part: %s", self._record.id, key, error)
            return []

    def add(self, result: LineResult) -> None:
        if not self._waiting:
            self._oldest_s = self._clock()
        self._waiting.append(result)
        self._waiting_bytes += len(result.text)

    @property
    def undurable(self) -> int:
        return len(self._waiting) + self._writing

    @property
    def is_heavy(self) -> bool:
        return self._waiting_bytes >= self._limits.undurable_bytes

    async def write_until_stopped(self) -> None:
        """Write parts of waiting answers as they become due. After `stop`, write the rest and return."""
        while not self._is_stopped or self._waiting:
            if self._is_stopped or self._is_due():
                await self.write()
            else:
                await asyncio.sleep(_TICK_S)

    def stop(self) -> None:
        self._is_stopped = True

    def resume(self) -> None:
        """Undo `stop` for another round of lines; `write_until_stopped` must be called after it."""
        self._is_stopped = False

    async def write(self) -> None:
        """Write one part of the waiting answers; return once it is durable. A failing store is tried again for ever."""
        results = self._next()
        self._waiting = self._waiting[len(results) :]
        self._waiting_bytes = sum(len(one.text) for one in self._waiting)
        self._oldest_s = self._clock()
        self._writing += len(results)
        key = names.part_key(self._record.tenant, self._record.id, self._claim, self._written)
        self._written += 1
        body = batch_parts.encode(results)
        while True:
            try:
                await self._store.put(key, body)
                break
            except StoreUnavailable as error:
                if self._repeats.is_new(kind_of(error), self._clock()):
                    _log.warning("batch %s: a part waits for the store: %s", self._record.id, error)
                await asyncio.sleep(_AGAIN_S)
        self.keys.append(key)
        for _ in self.done.add_new(results):
            pass
        self._writing -= len(results)

    def _next(self) -> list[LineResult]:
        size_bytes, most = 0, self._waiting[: self._limits.part_lines]
        for index, one in enumerate(most):
            size_bytes += len(one.text)
            if index and size_bytes > self._limits.part_bytes:
                return most[:index]
        return most

    def _is_due(self) -> bool:
        if not self._waiting:
            return False
        full = len(self._waiting) >= self._limits.part_lines or self._waiting_bytes >= self._limits.part_bytes
        return full or self._clock() - self._oldest_s >= self._limits.part_age_s
