"""Scheduler of the step loop: which tokens are computed next, and which sequences wait or are preempted.

One pass of `schedule` follows vLLM's (v1/core/sched/scheduler.py):

    1. running sequences first, in order of admission: one decode token each, or the next chunk of their prompt
    2. if no KV block is left, the sequence served last returns to waiting and will compute everything again
    3. then waiting sequences, by (priority, arrival), while slots, token budget and blocks last
    4. a waiting sequence whose adapter would exceed the limit is skipped ("deferred"); others overtake it
    5. a cached prefix is not computed again, except for the last prompt token
    6. a sequence with more of its prompt in host memory holds its blocks and is skipped until they have arrived

`finish_step` advances the sequences and returns those that got a token. Nothing here uses seconds; `core` adds them.
"""

from bisect import insort
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from functions.engines.sim.adapters import AdapterId
from functions.engines.sim.blocks import BlockPool, Copied, Dropped, Remembered, block_hash, chain
from functions.engines.sim.held_blocks import HeldBlocks
from functions.engines.sim.host_tier import HostTier
from functions.engines.sim.limits import EngineLimits
from functions.engines.sim.sequence import Sequence, Status

Pause = Literal["", "new", "all"]
"""Sequences that are not computed for now: "" holds back none, "new" the waiting ones, "all" every sequence."""


@dataclass(slots=True)
class Step:
    """Work of one pass of the engine."""

    budget_tokens: int
    chunks: dict[Sequence, int] = field(default_factory=dict)
    admitted: list[Sequence] = field(default_factory=list)
    preempted: list[Sequence] = field(default_factory=list)

    def add(self, seq: Sequence, tokens: int) -> None:
        self.chunks[seq] = tokens
        self.budget_tokens -= tokens

    def withdraw(self, seq: Sequence) -> None:
        self.budget_tokens += self.chunks.pop(seq, 0)

    @property
    def decode_seqs(self) -> int:
        return sum(1 for seq, tokens in self.chunks.items() if tokens == 1 and seq.emitted_tokens)

    @property
    def total_tokens(self) -> int:
        return sum(self.chunks.values())


class Scheduler:
    def __init__(self, limits: EngineLimits) -> None:
        self.limits = limits
        self.blocks = BlockPool(limits.num_kv_blocks)
        self.running: list[Sequence] = []
        self.waiting: list[Sequence] = []
        self.host = HostTier(limits.num_host_blocks, limits.block_size_tokens * limits.host_reload_s_per_token)
        self.held = HeldBlocks(self.blocks, limits.kv_lease_s)
        self.pause: Pause = ""
        self.deferred_seqs = 0
        """Waiting sequences that the last pass skipped because their adapter would exceed the limit."""

    @property
    def unfinished_seqs(self) -> int:
        return len(self.running) + len(self.waiting)

    @property
    def has_work(self) -> bool:
        """True if a step would compute anything."""
        return bool(self.pause != "all" and (self.running or (self.waiting and not self.pause)))

    @property
    def running_adapters(self) -> set[AdapterId]:
        return {seq.adapter for seq in self.running if seq.adapter is not None}

    def add(self, seq: Sequence) -> None:
        insort(self.waiting, seq, key=_order)

    def abort(self, seq: Sequence) -> None:
        """Remove the sequence immediately; a running step delivers nothing to it."""
        if seq.status is Status.RUNNING:
            self.running.remove(seq)
        elif seq.status is Status.WAITING:
            self.waiting.remove(seq)
        self._leave(seq, Status.ABORTED)

    def schedule(self, now_s: float = 0.0) -> Step:
        step = Step(budget_tokens=self.limits.max_num_batched_tokens)
        if self.pause == "all":
            return step
        self._extend_running(step)
        if not step.preempted and not self.pause:
            self._admit_waiting(step, now_s)
        return step

    def forget_cache(self) -> None:
        """Set running sequences back to waiting, and forget every prefix: on the accelerator, in host memory and held
        for transfers."""
        for seq in self.running:
            self._set_back(seq)
        self.running = []
        for seq in self.waiting:
            self._release(seq)
        self.held.forget()
        self.host.forget()
        self.blocks.forget()

    def finish_step(self, step: Step, now_s: float = 0.0) -> list[Sequence]:
        """Count the step's work. Return the sequences that got their next token, in order of service; finished ones
        have left the engine."""
        given: list[Sequence] = []
        for seq, tokens in step.chunks.items():
            if seq.status is not Status.RUNNING:
                continue
            self._advance(seq, tokens)
            if seq.computed_tokens == seq.prompt_tokens + seq.emitted_tokens:
                seq.emitted_tokens += 1
                given.append(seq)
        finished = [seq for seq in given if seq.emitted_tokens == seq.reply_tokens]
        for seq in finished:
            if seq.hold_as:
                self.held.hold(seq.hold_as, seq.blocks, seq.prompt_tokens, seq.cached_tokens, now_s)
                seq.blocks = []
            self._leave(seq, Status.FINISHED)
        if finished:
            self.running = [seq for seq in self.running if seq.status is Status.RUNNING]
        return given

    def _extend_running(self, step: Step) -> None:
        index = 0
        while index < len(self.running) and step.budget_tokens > 0:
            seq = self.running[index]
            tokens = min(seq.missing_tokens, step.budget_tokens)
            if self._grow(seq, tokens):
                step.add(seq, tokens)
                index += 1
                continue
            victim = self._served_last()
            index -= self.running.index(victim) < index
            self._preempt(victim, step)

    def _admit_waiting(self, step: Step, now_s: float) -> None:
        passed_over: list[Sequence] = []
        admitted = 0
        adapters = self.running_adapters
        for seq in self.waiting:
            if len(self.running) >= self.limits.max_num_seqs or step.budget_tokens <= 0:
                break
            if self._defers(seq, adapters) or self._waits_for_host(seq, now_s):
                passed_over.append(seq)
            elif self._start(seq, step):
                adapters |= {seq.adapter} if seq.adapter is not None else set()
            else:
                if not self.running:
                    self._free_last_reload(seq)
                break
            admitted += 1
        self.waiting = passed_over + self.waiting[admitted:]
        self.deferred_seqs = len(passed_over)

    def _defers(self, seq: Sequence, adapters: Iterable[AdapterId]) -> bool:
        active = set(adapters)
        return seq.adapter is not None and seq.adapter not in active and len(active) >= self.limits.max_loras

    def _start(self, seq: Sequence, step: Step) -> bool:
        size = self.limits.block_size_tokens
        if seq.reloaded_s is not None:
            return self._start_reloaded(seq, step)
        hashes, shared = self._cached_prefix(seq)
        cached_tokens = present_tokens = len(shared) * size
        if seq.received_tokens and not seq.preemptions:  # the last token yields the first reply token
            present_tokens = max(cached_tokens, min(seq.received_tokens, seq.known_tokens - 1))
        tokens = min(seq.known_tokens - present_tokens, step.budget_tokens)
        blocks = self.blocks.allocate(shared, _ceil(present_tokens + tokens, size) - len(shared))
        if blocks is None:
            return False
        seq.blocks, seq.hashes, seq.computed_tokens = blocks, hashes[: len(shared)], present_tokens
        if not seq.preemptions:
            seq.cached_tokens = cached_tokens + seq.remote_cached_tokens
        self._run(seq, step, tokens)
        return True

    def _waits_for_host(self, seq: Sequence, now_s: float) -> bool:
        """Return True if blocks of the prompt are being reloaded from host memory. The first call starts the reload."""
        if seq.reloaded_s is not None:
            return now_s < seq.reloaded_s
        if not len(self.host) or seq.received_tokens:
            return False
        hashes, shared = self._cached_prefix(seq)
        found = self.host.find_prefix(hashes[len(shared) :])
        blocks = self.blocks.allocate(shared, len(found)) if found else None
        if blocks is None:
            return False
        size = self.limits.block_size_tokens
        seq.blocks, seq.hashes = blocks, hashes[: len(shared)]
        seq.reload_tokens = len(blocks) * size
        if not seq.preemptions:
            seq.host_tokens = len(found) * size
            seq.cached_tokens = seq.reload_tokens
        seq.reloaded_s = self.host.reload(found, now_s)
        return now_s < seq.reloaded_s

    def _free_last_reload(self, wanting: Sequence) -> None:
        """Release the blocks of the last waiting sequence that has any, except `wanting`: nothing runs that could free
        some."""
        holding = [seq for seq in self.waiting if seq.blocks and seq is not wanting]
        if holding:
            self._release(holding[-1])

    def _start_reloaded(self, seq: Sequence, step: Step) -> bool:
        tokens = min(seq.known_tokens - seq.reload_tokens, step.budget_tokens)
        fresh = self.blocks.allocate(
            (), _ceil(seq.reload_tokens + tokens, self.limits.block_size_tokens) - len(seq.blocks)
        )
        if fresh is None:
            return False
        seq.blocks.extend(fresh)
        seq.computed_tokens = seq.reload_tokens
        self._remember(seq)
        seq.reloaded_s = None
        self._run(seq, step, tokens)
        return True

    def _run(self, seq: Sequence, step: Step, tokens: int) -> None:
        seq.status = Status.RUNNING
        self.running.append(seq)
        step.admitted.append(seq)
        step.add(seq, tokens)

    def _cached_prefix(self, seq: Sequence) -> tuple[list[bytes], list[int]]:
        if not self.limits.enable_prefix_caching:
            return [], []
        size = self.limits.block_size_tokens
        hashes = chain(seq.token_ids, seq.scope, block_size_tokens=size, blocks=(seq.known_tokens - 1) // size)
        return hashes, self.blocks.match(hashes)

    def _grow(self, seq: Sequence, tokens: int) -> bool:
        missing = _ceil(seq.computed_tokens + tokens, self.limits.block_size_tokens) - len(seq.blocks)
        if missing <= 0:
            return True
        fresh = self.blocks.allocate((), missing)
        if fresh is None:
            return False
        seq.blocks.extend(fresh)
        return True

    def _advance(self, seq: Sequence, tokens: int) -> None:
        seq.computed_tokens += tokens
        self._remember(seq)

    def _remember(self, seq: Sequence) -> None:
        """Make the sequence's full blocks findable, and copy those of its prompt to host memory."""
        size = self.limits.block_size_tokens
        while self.limits.enable_prefix_caching and len(seq.hashes) < seq.computed_tokens // size:
            index = len(seq.hashes)
            parent = seq.hashes[-1] if seq.hashes else None
            content = seq.token_ids[index * size : (index + 1) * size]
            name = block_hash(parent, content, seq.scope)
            seq.hashes.append(name)
            if self.blocks.remember(seq.blocks[index], name) and self.blocks.events is not None:
                self.blocks.events.append(Remembered(name, parent, content, seq.scope))
            if self.host.max_blocks and (index + 1) * size <= seq.prompt_tokens:
                self._copy(name)
            seq.created_cache_tokens += size if index * size < seq.prompt_tokens else 0

    def _copy(self, name: bytes) -> None:
        evicted, events = self.host.store(name), self.blocks.events
        if evicted is not None and events is not None:
            events.append(Copied(name))
            if evicted:
                events.append(Dropped(tuple(evicted)))

    def _served_last(self) -> Sequence:
        if self.limits.priority_scheduling:
            return max(self.running, key=_order)
        return self.running[-1]

    def _preempt(self, seq: Sequence, step: Step) -> None:
        self.running.remove(seq)
        step.withdraw(seq)
        step.preempted.append(seq)
        self._set_back(seq)

    def _set_back(self, seq: Sequence) -> None:
        self._release(seq)
        seq.computed_tokens = 0
        seq.preemptions += 1
        seq.status = Status.WAITING
        self.add(seq)

    def _leave(self, seq: Sequence, status: Status) -> None:
        self._release(seq)
        seq.status = status

    def _release(self, seq: Sequence) -> None:
        self.blocks.release(seq.blocks)
        seq.blocks, seq.hashes = [], []
        seq.reloaded_s = None


def _order(seq: Sequence) -> tuple[int, int]:
    return seq.order


def _ceil(tokens: int, block_size_tokens: int) -> int:
    return -(-tokens // block_size_tokens)
