"""Loops of KV events: read the engine's events, publish updates, and receive requests for them.

One pass of reading:

    1. the next batch                 none for a while: if the engine is gone, so is its cache; else request its replay
                                      buffer, because batches before the subscription leave no gap
    2. is it the next (`order`)?      old: skip it
    3. a gap, or another engine:      request the missed batches from the replay buffer, from the last known one or 0
    4. not all of it available:       drop the index and start a new generation
    5. decode, apply                  an unreadable batch counts as lost
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Literal

from functions.api.ids import PoolName, ReplicaId
from functions.fleet.bus import BusUnavailable, PrefixBus
from functions.fleet.prefix_updates import PrefixUpdateInvalid, decode_request, encode
from functions.fleet.tasks import Supervised
from functions.replica.kv_events.engine_blocks import EngineBlocks
from functions.replica.kv_events.source import Batch, EventsInvalid, EventSource, EventsUnavailable, Numbered, decode
from functions.replica.kv_events.update_schedule import TELL_INTERVAL_S, PrefixUpdates

# Order of batches: sequence numbers in, verdicts out.
#
# The engine numbers its batches from 0, and a subscription delivers them in order, each once. A higher number than
# expected means that batches were lost. A lower one with the same time is a batch that a replay delivered before.
# Otherwise it is from another engine that began at 0. Clocks are not compared: the new engine's may be behind.
#
# A replay is requested from the last known batch. If its first batch differs from that one in number or time, it is
# from another engine, and the index is dropped (`is_same`).
#
# Worked example (test_worked_example_of_a_restart): a replay delivered batch 41 of 12:00:05. Batch 41 of 12:00:05 is
# old, and batch 44 is a gap (batches after 41 are requested). Batch 41 of 11:00:00 is a restart, as is batch 3, which
# no replay delivered.


Verdict = Literal["next", "old", "gap", "restart"]


@dataclass(frozen=True, slots=True)
class Order:
    expected: int = 0  # the next batch's number
    last_ts_s: float = 0.0  # time of the batch before it, by the engine's wall clock

    def judge(self, seq: int, ts_s: float, replayed_ts_s: float | None) -> Verdict:
        """Return how a batch from the subscription follows the last one: next, gap (batches are missing), old (it was
        in the replay) or restart. `replayed_ts_s` is the time of the batch of that number in a replay, if there was
        one."""
        if seq == self.expected:
            return "next"
        if seq > self.expected:
            return "gap"
        return "old" if ts_s == replayed_ts_s else "restart"

    @property
    def replay_from(self) -> int:
        """The number of the last known batch, from which to request a replay; 0 if none is known."""
        return max(0, self.expected - 1)

    def is_same(self, seq: int, ts_s: float) -> bool:
        """Return True if a replay's first batch is the last known one, or batch 0 if none is known: it is from the same
        engine, with nothing missing."""
        if self.expected == 0:
            return seq == 0
        return seq == self.expected - 1 and ts_s == self.last_ts_s


_log = logging.getLogger(__name__)
_POLL_S = 0.5
_ASKED_FIRST, _ASKED_EVERY = 2, 20  # silent polls: after one second, then every ten
_BLOCKS_FACTOR = 2  # factor on the engine's own number: removals of freed blocks are delayed
_LEAST_BLOCKS, _MOST_BLOCKS = 1024, 1 << 18
_PUBLISH_TIMEOUT_S = 3.0
_SILENT_POLLS = 240  # two minutes in which an engine computed and reported no block: it publishes no events
_MOST_REPLAYED = 20_000  # twice the engine's buffer


class KvWatch:
    """KV event loops, on the agent's loop. Functions without arguments are called at each use; 0 means unknown."""

    def __init__(
        self,
        *,
        replica_id: ReplicaId,
        pool: PoolName,
        source: EventSource,
        bus: PrefixBus,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
        kv_blocks_total: Callable[[], int] = lambda: 0,
        kv_block_tokens: Callable[[], int] = lambda: 0,
        engine_is_gone: Callable[[], bool] = lambda: False,
        engine_computes: Callable[[], bool] = lambda: False,
    ) -> None:
        self.blocks = EngineBlocks(_MOST_BLOCKS)
        self.batches_total = 0
        self.lost_total = 0  # times that the index was dropped
        self._source, self._bus, self._clock, self._wall_clock = source, bus, clock, wall_clock
        self._kv_blocks_total, self._kv_block_tokens = kv_blocks_total, kv_block_tokens
        self._engine_is_gone, self._engine_computes = engine_is_gone, engine_computes
        self._silent_polls = 0  # polls in which this engine computed and no batch had arrived yet
        self._telling = PrefixUpdates(replica_id, pool, self.blocks, self._generation())
        self._order = Order()
        self._replayed: dict[int, float] = {}  # batches that the subscription may deliver again: number to time

    @property
    def receives_events(self) -> bool | None:
        """True if this engine's events arrive, False if it computed but sent none; None if it has computed nothing yet
        that would cause one."""
        if self._order.expected:
            return True
        return False if self._silent_polls >= _SILENT_POLLS else None

    def start(self, tasks: Supervised) -> None:
        tasks.forever("kv events", self.read, expected=(EventsUnavailable,))
        tasks.forever("kv updates", self.publish_updates, expected=(BusUnavailable, TimeoutError))
        tasks.forever("kv asks", self.receive_requests, expected=(BusUnavailable,))

    async def close(self) -> None:
        self._source.close()
        await self._bus.close()

    async def read(self) -> None:
        self._source.open()
        await self._catch_up()  # events from before this agent started
        silent = 0
        while True:
            batch = await self._source.next(_POLL_S)
            if batch is not None:
                await self._handle_batch(batch)
                silent = 0
                continue
            silent += 1
            self._silent_polls += not self._order.expected and self._engine_computes()
            if self._order.expected and self._engine_is_gone():
                self._drop("the engine is gone")
            elif silent % _ASKED_EVERY == _ASKED_FIRST:
                await self._catch_up()

    async def publish_updates(self) -> None:
        while True:
            await asyncio.sleep(TELL_INTERVAL_S)
            self.blocks.max_blocks = min(_MOST_BLOCKS, max(_LEAST_BLOCKS, _BLOCKS_FACTOR * self._kv_blocks_total()))
            if not len(self.blocks):  # before the first block is stored, so that its prompt is already learned
                self.blocks.block_tokens = self._kv_block_tokens() or self.blocks.block_tokens
            for update in self._telling.updates(self._clock()):
                async with asyncio.timeout(_PUBLISH_TIMEOUT_S):
                    await self._bus.publish_prefixes(encode(update))

    async def receive_requests(self) -> None:
        async for message in self._bus.prefix_requests():
            try:
                self._telling.record_request(decode_request(message), self._clock())
            except PrefixUpdateInvalid as error:
                _log.warning("dropped an invalid prefix request: %s", error)

    async def _handle_batch(self, batch: Numbered) -> None:
        events = self._decoded(batch)
        if events is None:
            return  # the next batch shows a gap
        verdict = self._order.judge(batch.seq, events.ts_s, self._replayed.pop(batch.seq, None))
        if verdict == "old":
            return
        if verdict == "restart":
            self._drop("the engine restarted")
        if verdict != "next":
            await self._catch_up()
        if self._order.expected < batch.seq:
            self._drop(f"batches {self._order.expected} to {batch.seq - 1} of KV events are lost")
            self._order = Order(batch.seq)
        if self._order.expected == batch.seq:
            self._apply(batch.seq, events)

    async def _catch_up(self) -> None:
        """Apply everything from the last known batch on, or from the engine's oldest batch if some are missing.

        Batches are applied one at a time, with the loop's other work in between: a buffer may hold a gigabyte.
        """
        try:
            async with aclosing(self._source.replay(self._order.replay_from)) as replay:
                first = await anext(replay, None)
                if first is not None and await self._is_continued(first):
                    async for batch in replay:
                        self._handle_replayed(batch)
                        await asyncio.sleep(0)
        except EventsUnavailable as error:
            _log.info("KV events cannot be replayed: %s", error)

    async def _is_continued(self, first: Numbered) -> bool:
        """Apply the first batch of a replay and return True if its rest is to be applied too. If the batch shows a
        restart or a gap, drop the index first; after a restart with an older start, replay everything and return
        False."""
        events = self._decoded(first)
        if events is not None and self._order.is_same(first.seq, events.ts_s):
            self._handle_replayed(first)  # only batch 0 is new here; any other first batch is known
            return True
        if first.seq == 0 or first.seq < self._order.expected:
            self._drop("the engine restarted")
            if first.seq > 0:
                await self._catch_up()  # from 0: the first batch is then the oldest one
                return False
        else:
            self._drop(f"batches {self._order.expected} to {first.seq - 1} of KV events are lost")
            self._order = Order(first.seq)
        self._handle_replayed(first)
        return True

    def _handle_replayed(self, batch: Numbered) -> None:
        if batch.seq != self._order.expected:
            return
        events = self._decoded(batch)
        if events is None:
            self._drop(f"batch {batch.seq} of KV events is lost")
            self._order = Order(batch.seq + 1)
            return
        self._apply(batch.seq, events)
        self._replayed[batch.seq] = events.ts_s
        if len(self._replayed) > _MOST_REPLAYED:
            del self._replayed[next(iter(self._replayed))]

    def _decoded(self, batch: Numbered) -> Batch | None:
        try:
            return decode(batch.payload)
        except EventsInvalid as error:
            _log.warning("batch %d of KV events: %s", batch.seq, error)
            return None

    def _apply(self, seq: int, batch: Batch) -> None:
        self.batches_total += 1
        self._order = Order(seq + 1, batch.ts_s)
        for event in batch.events:
            if not self.blocks.apply_event(event):
                self._telling.start_generation(self._generation())

    def _drop(self, why: str) -> None:
        """Drop the index, start a new generation and expect the engine's batch 0. `why` is logged if there was anything
        to drop."""
        if len(self.blocks) or self._order.expected:
            _log.warning("%s; the index of its KV blocks starts anew", why)
            self.lost_total += 1
        self.blocks.clear()
        self._order, self._silent_polls = Order(), 0
        self._replayed.clear()
        self._telling.start_generation(self._generation())

    def _generation(self) -> int:
        return int(self._wall_clock() * 1000)
