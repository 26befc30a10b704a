"""Loops of KV events: read the engine's, publish updates, receive requests for them.

One pass of reading is

    1. the next batch                 none for a while: an engine that is gone takes its cache with it; else its replay
                                      buffer is asked, since what came before the subscription held shows no gap
    2. is it the next (`order`)?      old: passed over
    3. a gap, or another engine:      what was missed is asked of the replay buffer, from what was had last or from 0
    4. not all of it to be had:       the index is dropped, a new generation begins
    5. decode, take in                what cannot be read counts as lost
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Literal

from functions.api.ids import PoolName, ReplicaId
from functions.fleet.bus import BusUnavailable, PrefixBus
from functions.fleet.prefix_updates import PrefixUpdateInvalid, decode_ask, encode
from functions.fleet.tasks import Supervised
from functions.replica.kv_events.engine_blocks import EngineBlocks
from functions.replica.kv_events.source import Batch, EventsInvalid, EventSource, EventsUnavailable, Numbered, decode
from functions.replica.kv_events.telling import TELL_INTERVAL_S, PrefixUpdates

# Which batch of events comes next: sequence numbers in, what to do out.
#
# The engine numbers its batches from 0, and a subscription brings them in that order, none twice. A number that is too
# high means that some were lost on the way. One that was had already is a batch that a replay brought before, which
# then has the same time; any other is another engine's, which began again at 0. No clock is compared with another: the
# new engine's may be behind.
#
# A replay is asked for from the last batch that was had. Where that is not the same batch (its number and its time),
# the replay is of another engine, and nothing of the one before it is believed any more (`is_same`).
#
# Worked example (test_worked_example_of_a_restart): a replay brought batch 41 of 12:00:05. Batch 41 of 12:00:05 is old,
# batch 44 is a gap (what follows 41 is asked for), and batch 41 of 11:00:00 is a restart, as is batch 3, which no
# replay brought.


Verdict = Literal["next", "old", "gap", "restart"]


@dataclass(frozen=True, slots=True)
class Order:
    expected: int = 0  # the next batch's number
    last_ts_s: float = 0.0  # of the batch before it, by the engine's wall clock

    def judge(self, seq: int, ts_s: float, replayed_ts_s: float | None) -> Verdict:
        """Of a batch that the subscription brought; `replayed_ts_s` is of the one by that number in a replay."""
        if seq == self.expected:
            return "next"
        if seq > self.expected:
            return "gap"
        return "old" if ts_s == replayed_ts_s else "restart"

    @property
    def replay_from(self) -> int:
        """The last batch that was had, if there is one."""
        return max(0, self.expected - 1)

    def is_same(self, seq: int, ts_s: float) -> bool:
        """Whether a replay's first batch is what was asked for: of the same engine, and with nothing missing."""
        if self.expected == 0:
            return seq == 0
        return seq == self.expected - 1 and ts_s == self.last_ts_s


_log = logging.getLogger(__name__)
_POLL_S = 0.5
_ASKED_FIRST, _ASKED_EVERY = 2, 20  # silent polls: after a second, then each ten
_BLOCKS_FACTOR = 2  # of the engine's own number: freed blocks whose removal is on its way
_LEAST_BLOCKS, _MOST_BLOCKS = 1024, 1 << 18
_PUBLISH_TIMEOUT_S = 3.0
_SILENT_POLLS = 240  # two minutes in which an engine computed and told of no block: it tells nothing
_MOST_REPLAYED = 20_000  # twice the engine's buffer


class KvWatch:
    """Owned by the agent's loop. What is a function of no arguments is asked as it goes; 0 means unknown."""

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
        self.lost_total = 0  # times that the index was dropped because not all was heard
        self._source, self._bus, self._clock, self._wall_clock = source, bus, clock, wall_clock
        self._kv_blocks_total, self._kv_block_tokens = kv_blocks_total, kv_block_tokens
        self._engine_is_gone, self._engine_computes = engine_is_gone, engine_computes
        self._silent_polls = 0  # of this engine: it computed, and no batch had come yet
        self._telling = PrefixUpdates(replica_id, pool, self.blocks, self._generation())
        self._order = Order()
        self._replayed: dict[int, float] = {}  # batches that the subscription may bring once more: number to time

    @property
    def is_told(self) -> bool | None:
        """Whether this engine's events come; None: it has computed nothing yet that would show it."""
        if self._order.expected:
            return True
        return False if self._silent_polls >= _SILENT_POLLS else None

    def start(self, tasks: Supervised) -> None:
        tasks.forever("kv events", self.read, expected=(EventsUnavailable,))
        tasks.forever("kv telling", self.tell, expected=(BusUnavailable, TimeoutError))
        tasks.forever("kv asks", self.hear, expected=(BusUnavailable,))

    async def close(self) -> None:
        self._source.close()
        await self._bus.close()

    async def read(self) -> None:
        self._source.open()
        await self._catch_up()  # what the engine did before we came
        silent = 0
        while True:
            batch = await self._source.next(_POLL_S)
            if batch is not None:
                await self._take(batch)
                silent = 0
                continue
            silent += 1
            self._silent_polls += not self._order.expected and self._engine_computes()
            if self._order.expected and self._engine_is_gone():
                self._drop("the engine is gone")
            elif silent % _ASKED_EVERY == _ASKED_FIRST:
                await self._catch_up()

    async def tell(self) -> None:
        while True:
            await asyncio.sleep(TELL_INTERVAL_S)
            self.blocks.max_blocks = min(_MOST_BLOCKS, max(_LEAST_BLOCKS, _BLOCKS_FACTOR * self._kv_blocks_total()))
            if not len(self.blocks):  # before the first block is stored, so that its prompt is learnt already
                self.blocks.block_tokens = self._kv_block_tokens() or self.blocks.block_tokens
            for update in self._telling.updates(self._clock()):
                async with asyncio.timeout(_PUBLISH_TIMEOUT_S):
                    await self._bus.publish_prefixes(encode(update))

    async def hear(self) -> None:
        async for message in self._bus.prefix_asks():
            try:
                self._telling.heard(decode_ask(message), self._clock())
            except PrefixUpdateInvalid as error:
                _log.warning("dropped a question about prefixes: %s", error)

    async def _take(self, batch: Numbered) -> None:
        events = self._decoded(batch)
        if events is None:
            return  # the next one shows a gap
        verdict = self._order.judge(batch.seq, events.ts_s, self._replayed.pop(batch.seq, None))
        if verdict == "old":
            return
        if verdict == "restart":
            self._drop("the engine began again")
        if verdict != "next":
            await self._catch_up()
        if self._order.expected < batch.seq:
            self._drop(f"batches {self._order.expected} to {batch.seq - 1} of KV events are lost")
            self._order = Order(batch.seq)
        if self._order.expected == batch.seq:
            self._apply(batch.seq, events)

    async def _catch_up(self) -> None:
        """Everything from where we are on; where the engine no longer has all of that, from its oldest batch on.

        One batch after the other, with the loop's other work in between: a buffer may hold a gigabyte.
        """
        try:
            async with aclosing(self._source.replay(self._order.replay_from)) as replay:
                first = await anext(replay, None)
                if first is not None and await self._is_continued(first):
                    async for batch in replay:
                        self._take_replayed(batch)
                        await asyncio.sleep(0)
        except EventsUnavailable as error:
            _log.info("KV events cannot be replayed: %s", error)

    async def _is_continued(self, first: Numbered) -> bool:
        """Whether the rest of a replay that begins so follows what we have; the first is taken where it does."""
        events = self._decoded(first)
        if events is not None and self._order.is_same(first.seq, events.ts_s):
            self._take_replayed(first)  # the very first batch of all; any other one was had
            return True
        if first.seq == 0 or first.seq < self._order.expected:
            self._drop("the engine began again")
            if first.seq > 0:
                await self._catch_up()  # from 0: now whatever comes first is the oldest that there is
                return False
        else:
            self._drop(f"batches {self._order.expected} to {first.seq - 1} of KV events are lost")
            self._order = Order(first.seq)
        self._take_replayed(first)
        return True

    def _take_replayed(self, batch: Numbered) -> None:
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
            if not self.blocks.take(event):
                self._telling.begin_anew(self._generation())

    def _drop(self, why: str) -> None:
        """Forget what the engine holds, and begin again with nothing, before its first batch."""
        if len(self.blocks) or self._order.expected:
            _log.warning("%s; the index of its KV blocks begins anew", why)
            self.lost_total += 1
        self.blocks.clear()
        self._order, self._silent_polls = Order(), 0
        self._replayed.clear()
        self._telling.begin_anew(self._generation())

    def _generation(self) -> int:
        return int(self._wall_clock() * 1000)
