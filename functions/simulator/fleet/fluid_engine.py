"""An engine in virtual time that is advanced per change, not per step.

Between two changes (a request arrives, a prompt is read, an answer ends, the cache is full) all steps are alike, so
one formula covers them. With n decoding sequences in a cache that holds c tokens, k steps in which r prompt tokens
are read take

    k x (step + n x sequence) + kv x (c k + n k^2 / 2) + r x prefill        milliseconds

since each step adds a token to each sequence. Time is counted in steps, as a real number: a sequence with m tokens
left ends after m more steps, whatever the other sequences do. So the next end is the head of a heap, and a request
costs a few events however many tokens it has.

Exact: the number of steps, the order of service (prompts by priority and arrival, together with decodes), the token
budget, slots and memory, and that a first token comes at the end of a step. Approximate: a request that arrives
within a step waits for half a step, and if one step reads several prompts, its tokens count for the first prompt
first. `test_agrees_with_the_engine_that_steps` bounds the error; `functions.engines.sim` is the engine that steps.
"""

from collections import deque
from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from math import ceil, inf

from functions.simulator.fleet.engine_profile import EngineProfile
from functions.simulator.fleet.prefix_cache import PrefixCache
from functions.simulator.fleet.token_gaps import TokenGaps

IDLE = inf
_NEARLY = 1e-7  # steps
_NO_TOKENS = 1e-3  # rounding remainder of a prompt that has been read
_HEADROOM_RATIO = 0.02  # cache share that must be free before a preempted sequence is readmitted, as the others grow


class FluidSequence:
    """One sequence in an engine."""

    __slots__ = (
        "admitted_s",
        "arrived_s",
        "blocks",
        "computed_tokens",
        "holds_tokens",
        "is_over",
        "is_received",
        "joined_steps",
        "left_tokens",
        "number",
        "order",
        "owner",
        "preemptions",
        "prompt_tokens",
        "reloaded_tokens",
        "started",
        "unread_tokens",
    )

    def __init__(
        self,
        number: int,
        prompt_tokens: int,
        output_tokens: int,
        owner: object,
        *,
        blocks: Sequence[int] = (),
        priority: int = 0,
    ) -> None:
        self.number = number
        self.order = (priority, number)
        self.owner = owner
        self.prompt_tokens = prompt_tokens
        self.blocks = blocks
        self.unread_tokens: float = prompt_tokens
        self.computed_tokens = prompt_tokens  # prompt tokens that were not cached
        self.left_tokens: float = max(1, output_tokens)
        self.holds_tokens: float = prompt_tokens  # cache tokens when it joined
        self.joined_steps = 0.0  # step count at its first token
        self.started = False  # True after its first token
        self.arrived_s = self.admitted_s = 0.0
        self.preemptions = 0
        self.is_over = False
        self.reloaded_tokens = 0  # prompt tokens that come from host memory
        self.is_received = False  # True if its KV blocks come from another engine, all but the last token's


class FluidEngine:
    """A simulated engine. Call `advance` at `next_s`; every call changes `next_s`. `first` and `over` collect sequences
    with a first token and finished ones; the caller empties them."""

    __slots__ = (
        "_began_steps",
        "_decoding",
        "_fast_forward",
        "_profile",
        "_reading",
        "_slots",
        "_slowness",
        "_steps",
        "_waiting",
        "busy_s",
        "cache",
        "computed_tokens",
        "e2e_s",
        "finished",
        "first",
        "gap_s",
        "gap_tokens",
        "gaps",
        "is_frozen",
        "kv_tokens",
        "next_s",
        "now_s",
        "over",
        "prefill_s",
        "queue_s",
        "reading_tokens",
    )

    def __init__(self, profile: EngineProfile, gaps: TokenGaps, cache: PrefixCache | None = None) -> None:
        self._profile = profile
        self.cache = cache
        self.gaps = gaps
        self.now_s = 0.0
        self.next_s = IDLE
        self.kv_tokens = 0.0  # held by sequences
        self.reading_tokens = 0.0  # prompt tokens of admitted sequences still to be read
        self.first: list[FluidSequence] = []
        self.over: list[FluidSequence] = []
        self.busy_s = 0.0
        self.finished = 0  # this and the next six are totals as in vLLM's histograms
        self.queue_s = 0.0
        self.gap_s = 0.0
        self.gap_tokens = 0.0
        self.e2e_s = 0.0
        self.prefill_s = 0.0
        self.computed_tokens = 0
        self._steps = 0.0  # total
        self._began_steps = 0.0  # start of the first step that reads the current prompts; whole steps follow from there
        self._reading: deque[FluidSequence] = deque()
        self._slots: dict[int, FluidSequence] = {}  # decoding sequences by number, the youngest last
        self._decoding: list[tuple[float, int, FluidSequence]] = []  # the same, by the step count of their last token
        self._waiting: list[tuple[tuple[int, int], FluidSequence]] = []
        self._fast_forward = (0.0, 0.0, 0.0)  # until the next change: steps, prompt tokens read, seconds
        self._slowness = 1.0  # factor on the length of every step
        self.is_frozen = False  # hanging: accepts requests and makes no step

    @property
    def running(self) -> int:
        return len(self._slots) + len(self._reading)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def add(self, work: FluidSequence, now_s: float) -> None:
        self.advance(now_s)
        work.arrived_s = now_s
        heappush(self._waiting, (work.order, work))
        if not self.is_frozen:
            self._admit()
            self._plan()

    def drop(self, work: FluidSequence, now_s: float) -> None:
        """Remove a request that is no longer wanted; its slot and memory are free immediately. Ignores a finished
        one."""
        self.advance(now_s)
        if work.is_over:
            return
        if work.number in self._slots:
            self._release(work)
        elif work in self._reading:
            self._unread(work)
        else:
            self._waiting = [entry for entry in self._waiting if entry[1] is not work]
            heapify(self._waiting)
        work.is_over = True
        if not self.is_frozen:
            self._admit()
            self._plan()

    def works(self) -> list[FluidSequence]:
        """Return all sequences in order of arrival."""
        held = [*self._slots.values(), *self._reading, *(entry[1] for entry in self._waiting)]
        return sorted(held, key=lambda work: work.number)

    def freeze(self, now_s: float) -> None:
        self.advance(now_s)
        self.is_frozen, self._fast_forward, self.next_s = True, (0.0, 0.0, 0.0), IDLE

    def thaw(self, now_s: float) -> None:
        self.advance(now_s)
        self.is_frozen = False
        self._admit()
        self._plan()

    def slow_down(self, factor: float, now_s: float) -> None:
        """Multiply the length of every step by `factor` from now on; 1 is normal."""
        self.advance(now_s)
        self._slowness = factor
        if not self.is_frozen:
            self._plan()

    def advance(self, now_s: float) -> None:
        """Advance to a time, including changes due at it."""
        while now_s >= self.next_s:
            self._change()
        if now_s > self.now_s:
            steps, tokens, seconds = self._fast_forward
            if seconds > 0.0:
                part = min(1.0, (now_s - self.now_s) / seconds)
                self._move(steps * part, tokens * part, seconds * part)
                self._fast_forward = (steps * (1 - part), tokens * (1 - part), seconds * (1 - part))
            self.now_s = now_s

    # Outside view of the engine at `now_s`.

    @property
    def unscheduled(self) -> int:
        """Requests without a slot or beyond the step's token budget: vLLM's num_requests_waiting."""
        left = self._profile.step_budget_tokens - len(self._slots)
        late = 0
        for work in self._reading:
            late += left <= 0
            left -= ceil(work.unread_tokens)
        return late + len(self._waiting)

    def first_token_s(self, tokens: float) -> float:
        """Return the seconds to the first token of a prompt with `tokens` to compute, if it arrived now. Requests ahead
        are served first, decoding continues meanwhile, and memory is assumed to suffice."""
        ahead_tokens = self.reading_tokens + sum(work.unread_tokens for _, work in self._waiting)
        return self.computing_s(ahead_tokens + tokens)

    def computing_s(self, tokens: float) -> float:
        """Return the seconds of the steps that read so many prompt tokens while the current sequences decode."""
        profile, decoding = self._profile, len(self._slots)
        steps = max(1.0, tokens / (profile.step_budget_tokens - decoding))
        even_ms = (
            profile.step_ms
            + decoding * profile.decode_ms_per_sequence
            + self.kv_tokens * profile.decode_ms_per_kv_token
        )
        return (steps * even_ms + tokens * profile.prefill_ms_per_token) / 1000 * self._slowness

    # Changes.

    def _change(self) -> None:
        self._move(*self._fast_forward)
        self.now_s = self.next_s
        reading, decoding = self._reading, self._decoding
        while reading and reading[0].unread_tokens <= _NO_TOKENS:
            self._has_read(reading.popleft())
        while decoding and decoding[0][0] <= self._steps + _NEARLY:
            work = heappop(decoding)[2]
            if work.number in self._slots:
                self._release(work)
                self._end(work)
        while self._is_full() and self.running > 1:
            self._preempt()
        self._admit()
        self._plan()

    def _move(self, steps: float, tokens: float, seconds: float) -> None:
        decoding = len(self._slots)
        self._steps += steps
        self.kv_tokens += steps * decoding
        self.busy_s += seconds
        if decoding and steps > 0.0:
            self._count_gaps(steps, tokens, seconds, decoding)
        if tokens > 0.0:
            self.reading_tokens -= tokens
            for work in self._reading:
                if tokens <= work.unread_tokens:
                    work.unread_tokens -= tokens
                    break
                tokens -= work.unread_tokens
                work.unread_tokens = 0.0

    def _count_gaps(self, steps: float, tokens: float, seconds: float, decoding: int) -> None:
        """Count gaps. Steps that read a full chunk are longer than a prompt's last step, so they count separately."""
        self.gap_s += seconds * decoding
        self.gap_tokens += steps * decoding
        chunk = self._profile.step_budget_tokens - decoding
        full = float(int(tokens / chunk + _NEARLY))
        if 0.0 < full < steps:
            difference_s = full * chunk * self._profile.prefill_ms_per_token / 1000
            even_s = (seconds - difference_s) / steps
            self.gaps.add(even_s + difference_s / full, full * decoding)
            self.gaps.add(even_s, (steps - full) * decoding)
        else:
            self.gaps.add(seconds / steps, steps * decoding)

    def _has_read(self, work: FluidSequence) -> None:
        """Finish a prompt: the step that read its last part also makes a token."""
        if self._reading:
            self._reading[0].admitted_s = self.now_s  # until now the step budget was used up
        else:
            self.reading_tokens = 0.0  # removes rounding errors
        if not work.started:
            work.started = True
            self.prefill_s += self.now_s - work.admitted_s
            self.queue_s += max(0.0, work.admitted_s - work.arrived_s)
            self.computed_tokens += work.computed_tokens
            if self.cache is not None:
                self.cache.enter(work.blocks)
            self.first.append(work)
        work.left_tokens -= 1
        if work.left_tokens < 1:
            self.kv_tokens -= work.holds_tokens
            self._end(work)
            return
        work.joined_steps = self._steps
        self._slots[work.number] = work
        heappush(self._decoding, (self._steps + work.left_tokens, work.number, work))

    def _end(self, work: FluidSequence) -> None:
        work.is_over = True
        self.finished += 1
        self.e2e_s += self.now_s - work.arrived_s
        self.over.append(work)

    def _release(self, work: FluidSequence) -> None:
        """Free slot and memory of a decoding sequence; its heap entry is skipped later."""
        del self._slots[work.number]
        self.kv_tokens -= work.holds_tokens + self._steps - work.joined_steps

    def _unread(self, work: FluidSequence) -> None:
        self._reading.remove(work)
        self.reading_tokens = max(0.0, self.reading_tokens - work.unread_tokens) if self._reading else 0.0
        self.kv_tokens -= work.holds_tokens

    # Memory.

    def _is_full(self) -> bool:
        """Return True if sequences decode and the KV cache has no room for the tokens of their next step."""
        return bool(self._slots) and self.kv_tokens + len(self._slots) > self._profile.kv_tokens + _NEARLY

    def _preempt(self) -> None:
        """Preempt the sequence that is served last: it waits again, and everything is recomputed."""
        if self._reading:
            work = self._reading[-1]
            self._unread(work)
        else:
            work = self._slots[next(reversed(self._slots))]
            self._release(work)
            made = round(self._steps - work.joined_steps)
            work.left_tokens = max(1, work.left_tokens - made)
            work.holds_tokens += made + 1
            self._decoding = [entry for entry in self._decoding if entry[2] is not work]
            heapify(self._decoding)
        work.unread_tokens = work.holds_tokens
        work.preemptions += 1
        heappush(self._waiting, (work.order, work))

    def _admit(self) -> None:
        profile, waiting = self._profile, self._waiting
        while waiting and self.running < profile.max_sequences:
            work = waiting[0][1]
            room = profile.kv_tokens - self.kv_tokens - len(self._slots)
            needed = work.holds_tokens
            if work.preemptions:
                needed += _HEADROOM_RATIO * profile.kv_tokens
            if needed > room and self.running:
                return
            heappop(waiting)
            if not self._reading:
                self._began_steps = self._steps + (0.5 if self._slots else 0.0)
            if self.cache is not None and not work.preemptions:
                work.computed_tokens -= self.cache.cached_tokens(work.blocks, work.prompt_tokens, work.reloaded_tokens)
                work.unread_tokens = work.computed_tokens
            if work.is_received and not work.preemptions:
                work.unread_tokens = work.computed_tokens = min(1, work.computed_tokens)
            work.admitted_s = self.now_s
            self._reading.append(work)
            self.reading_tokens += work.unread_tokens
            self.kv_tokens += work.holds_tokens

    # Next change.

    def _plan(self) -> None:
        profile, decoding = self._profile, len(self._slots)
        if not decoding and not self._reading:
            self._fast_forward, self.next_s = (0.0, 0.0, 0.0), IDLE
            return
        until = self._next_end()
        if decoding and self.running > 1:
            until = min(until, self._steps + (profile.kv_tokens - self.kv_tokens) / decoding)
        tokens = 0.0
        if self._reading:
            chunk = profile.step_budget_tokens - decoding
            began = max(self._steps, self._began_steps)
            whole = ceil(began - self._began_steps + self._reading[0].unread_tokens / chunk - _NEARLY)
            until = min(until, self._began_steps + whole)
            tokens = min(self.reading_tokens, max(0.0, until - began) * chunk)
        steps = max(0.0, until - self._steps)
        even_ms = profile.step_ms + decoding * profile.decode_ms_per_sequence
        attended_tokens = self.kv_tokens * steps + decoding * steps * steps / 2
        seconds = (
            (steps * even_ms + attended_tokens * profile.decode_ms_per_kv_token + tokens * profile.prefill_ms_per_token)
            * self._slowness
            / 1000
        )
        self._fast_forward = (steps, tokens, seconds)
        self.next_s = self.now_s + seconds

    def _next_end(self) -> float:
        """Return the step count at which the next answer ends; infinity if none is being decoded."""
        decoding = self._decoding
        return decoding[0][0] if decoding else inf
