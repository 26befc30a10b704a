"""The engine in real time: a clock paces the core's steps, and tokens go to their listeners.

One loop begins a step, sleeps for the step's duration, ends it, and notifies each listener of its token. Delays of
the event loop are made up in the next step (up to a bound), so the rate is the model's and not the machine's. When
the engine dies every listener is notified once, and the loop ends.
"""

import asyncio
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Protocol

from functions.engines.sim.accept import ReplyChoice, Work
from functions.engines.sim.adapters import AdapterId
from functions.engines.sim.core import EngineCore
from functions.engines.sim.faults import FaultBox
from functions.engines.sim.kv_events import KvEventPublisher
from functions.engines.sim.lifecycle import Level, Mode, Slumber
from functions.engines.sim.model import Adapter
from functions.engines.sim.refusals import engine_dead, prefill_backlog_full, queue_full
from functions.engines.sim.sequence import Sequence, Status


class Clock(Protocol):
    """Two clocks: engine seconds (monotonic; steps and latencies) and wall seconds (the `created` of a response)."""

    def now_s(self) -> float:
        """Return monotonic seconds."""
        ...

    def wall_s(self) -> float:
        """Return seconds since 1970."""
        ...

    async def sleep_until(self, when_s: float) -> None: ...


class SystemClock:
    def now_s(self) -> float:
        return time.monotonic()

    def wall_s(self) -> float:
        return time.time()

    async def sleep_until(self, when_s: float) -> None:
        await asyncio.sleep(max(0.0, when_s - time.monotonic()))


_MAX_CATCH_UP_S = 0.25
_FREEZE_POLL_S = 0.05


class Listener(Protocol):
    def on_token(self, seq: Sequence) -> None: ...
    def on_abort(self, seq: Sequence) -> None: ...
    def on_engine_death(self) -> None: ...


class LiveEngine:
    def __init__(self, core: EngineCore, clock: Clock, faults: FaultBox, kv_events: KvEventPublisher | None) -> None:
        self.core = core
        self.kv_events = kv_events
        if kv_events is not None:
            core.scheduler.blocks.events = []
        self.dead = False
        self.slumber = Slumber()
        self._clock = clock
        self._faults = faults
        self._seq_ids = count()
        self._owners: dict[int, tuple[Listener, ReplyChoice]] = {}
        self._adapter_paths: dict[AdapterId, str] = {}
        self._wake = asyncio.Event()
        self._empty = asyncio.Event()

    @property
    def queued_prefill_tokens(self) -> int:
        """Prompt tokens of requests that have no token yet, computed or not (vLLM's conservative count)."""
        scheduler = self.core.scheduler
        return sum(s.prompt_tokens for s in (*scheduler.running, *scheduler.waiting) if not s.emitted_tokens)

    def check_admission(self, n: int) -> None:
        """Raise EngineRefusal if the engine is dead or `n` more requests exceed a queue limit; count the latter."""
        limits, stats = self.core.limits, self.core.stats
        if self.dead:
            raise engine_dead()
        queued = self.core.scheduler.unfinished_seqs
        if limits.max_num_queued_reqs is not None and queued + n > limits.max_num_queued_reqs:
            stats.rejections["max_num_queued_reqs"] += 1
            raise queue_full()
        if limits.max_num_queued_tokens is not None and self.queued_prefill_tokens >= limits.max_num_queued_tokens:
            stats.rejections["max_num_queued_tokens"] += 1
            raise prefill_backlog_full()

    def submit(self, work: Work, listener: Listener) -> list[Sequence]:
        """Queue one sequence per choice, whose tokens `listener` receives, and return them in the order of the
        choices."""
        seqs = [self._sequence(work, index) for index in range(len(work.choices))]
        for seq, choice in zip(seqs, work.choices, strict=True):
            self._owners[seq.seq_id] = (listener, choice)
            self.core.add(seq)
        for _ in work.prompts:
            self.core.stats.request_n.observe(work.n)
            self.core.stats.request_max_tokens.observe(work.max_tokens)
        self._wake.set()
        return seqs

    def abort(self, seqs: Iterable[Sequence]) -> None:
        for seq in seqs:
            self._owners.pop(seq.seq_id, None)
            self.core.abort(seq)

    async def load_adapter(self, adapter: Adapter) -> None:
        """Load the adapter into a slot, and return after the stall that this causes; all requests wait as long."""
        self._adapter_paths[adapter.adapter_id] = adapter.path
        stall_s = self.core.load_adapter(adapter.adapter_id)
        await self._clock.sleep_until(self._clock.now_s() + stall_s)

    async def sleep(self, level: Level, mode: Mode) -> None:
        """Put the engine to sleep at `level`. `mode` aborts its requests, waits for them, or keeps them. From level 1
        on, all cached KV is forgotten."""
        scheduler = self.core.scheduler
        if mode == "abort":
            self._abort_all()
        scheduler.pause = "all" if mode == "keep" else "new"
        if mode == "wait":
            await self.wait_until_idle()
        if level:
            scheduler.forget_cache()
        self.slumber = self.slumber.fall_asleep(level)

    def wake_up(self, tags: Iterable[str] | None = None) -> None:
        """Wake the memory of `tags`, or all of it. Waiting requests are computed once all memory is back."""
        self.slumber = self.slumber.wake_up(tags)
        if self.slumber.level is None:
            self.core.scheduler.pause = ""
            self._wake.set()

    def die(self) -> None:
        """Stop the engine and notify all listeners of its death."""
        self._halt()
        listeners = {id(listener): listener for listener, _ in self._owners.values()}
        self._owners.clear()
        for listener in listeners.values():
            listener.on_engine_death()

    def stop(self) -> None:
        """Stop the engine without notifying listeners, as vLLM does with open requests on SIGTERM."""
        self._halt()
        self._owners.clear()

    def apply_faults(self) -> None:
        """Apply the fault switches of the KV cache: a share of the blocks is withheld, prefixes are not found. Enough
        blocks for one sequence always remain."""
        faults, blocks, limits = self._faults.now, self.core.scheduler.blocks, self.core.limits
        spared = -(-limits.max_model_len_tokens // limits.block_size_tokens)
        blocks.withheld_blocks = min(int(faults.kv_held_ratio * blocks.num_blocks), blocks.num_blocks - spared)
        blocks.finds_nothing = faults.forget_prefixes

    async def wait_until_idle(self) -> None:
        """Return when a step would compute nothing; waiting sequences do not count while the scheduler is paused."""
        while self.core.has_work:
            self._empty.clear()
            await self._empty.wait()

    async def run(self) -> None:
        self.apply_faults()
        ended_s = self._clock.now_s()
        while not self.dead:
            if not self.core.has_work or self._faults.now.freeze:
                await self._idle()
                ended_s = self._clock.now_s()
                continue
            ended_s = await self._step(max(ended_s, self._clock.now_s() - _MAX_CATCH_UP_S))

    async def _idle(self) -> None:
        if self.core.has_work:
            await self._clock.sleep_until(self._clock.now_s() + _FREEZE_POLL_S)
            return
        self._wake.clear()
        self._empty.set()
        await self._wake.wait()

    async def _step(self, start_s: float) -> float:
        self.core.scheduler.held.expire(self._clock.now_s())
        begun = self.core.begin_step(self._clock.now_s())
        if any(not self._is_on_disk(adapter) for adapter in begun.disk_reads):
            self.die()
            return start_s
        end_s = start_s + begun.duration_s * self._faults.now.slow_factor
        await self._clock.sleep_until(end_s)
        if not self.dead:
            self._deliver()
            self._publish_kv_events()
        return end_s

    @contextmanager
    def publishing_kv_events(self) -> Iterator[None]:
        """Publish KV events inside this context, if they are enabled."""
        if self.kv_events is None:
            yield
            return
        self.kv_events.start()
        try:
            yield
        finally:
            self.kv_events.close()

    def _publish_kv_events(self) -> None:
        changes = self.core.scheduler.blocks.pop_events()
        if changes and self.kv_events is not None:
            self.kv_events.publish(changes, self.core.limits.block_size_tokens)

    def _abort_all(self) -> None:
        """Abort all sequences; each listener is notified and keeps the tokens so far."""
        scheduler = self.core.scheduler
        for seq in (*scheduler.running, *scheduler.waiting):
            owner = self._owners.pop(seq.seq_id, None)
            self.core.abort(seq)
            if owner is not None:
                self.core.stats.finished["abort"] += 1
                owner[0].on_abort(seq)

    def _halt(self) -> None:
        self.dead = True
        self._wake.set()

    def _is_on_disk(self, adapter: AdapterId) -> bool:
        return Path(self._adapter_paths[adapter]).is_dir()

    def _deliver(self) -> None:
        owners = self._owners
        for seq in self.core.end_step(self._clock.now_s()):
            owner = owners.get(seq.seq_id)
            if owner is None:
                continue
            listener, choice = owner
            if seq.status is Status.FINISHED:
                del owners[seq.seq_id]
                self.core.stats.finished[choice.plan.finish_reason] += 1
            listener.on_token(seq)

    def _sequence(self, work: Work, index: int) -> Sequence:
        choice = work.choices[index]
        seq = Sequence.arrive(
            next(self._seq_ids),
            choice.prompt.ids,
            choice.plan.ids,
            now_s=self._clock.now_s(),
            scope=work.scope,
            adapter=work.adapter.adapter_id if work.adapter else None,
            priority=work.priority if self.core.limits.priority_scheduling else 0,
        )
        seq.received_tokens, seq.remote_cached_tokens = work.received.tokens, work.received.cached_tokens
        seq.hold_as = work.hold_as
        return seq
