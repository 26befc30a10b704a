"""The engine without a clock: `begin_step(now)` starts a step and returns its duration, `end_step(now)` ends it.

The caller owns time. The asyncio shell sleeps between the two calls; a test or a fleet simulator adds the numbers up.
The same calls with the same arguments and the same seed return the same results.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from itertools import accumulate
from random import Random

from functions.engines.sim.adapters import AdapterId, AdapterTiers
from functions.engines.sim.limits import EngineLimits, StepCosts
from functions.engines.sim.scheduler import Scheduler, Step
from functions.engines.sim.sequence import Sequence, Status

LATENCY_S = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
TTFT_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560),
)
ITL_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
ITERATION_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
PARAMS_N = (1, 2, 5, 10, 20)
PREEMPTIONS = (1, 2, 3, 4, 5, 10, 20)


def one_two_five(limit: int) -> tuple[float, ...]:
    """Return 1, 2, 5, 10, 20, 50 ... up to `limit`: vLLM's buckets for token counts."""
    series = (mantissa * 10**exponent for exponent in range(len(str(limit))) for mantissa in (1, 2, 5))
    return tuple(float(value) for value in series if value <= limit)


class Histogram:
    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def cumulative(self) -> list[tuple[str, float]]:
        """Return pairs of (upper bound as text, observations up to it), ending with +Inf."""
        names = [*(str(float(bound)) for bound in self.bounds), "+Inf"]
        return list(zip(names, (float(count) for count in accumulate(self.counts)), strict=True))


class EngineStats:
    """Counters and histograms of one engine since it started, in vLLM's terms and buckets (v1/metrics/buckets.py).

    `exposition` maps them to vLLM's names. Observing costs one bisect and two additions: at 20,000 tokens a second
    the inter-token histogram is the hottest line.
    """

    def __init__(self, *, max_model_len_tokens: int) -> None:
        tokens = one_two_five(max_model_len_tokens)
        self.prompt_tokens = 0
        self.cached_prompt_tokens = 0
        self.generation_tokens = 0
        self.prefix_queries_tokens = 0
        self.prefix_hits_tokens = 0
        self.external_queries_tokens = 0
        self.external_hits_tokens = 0
        self.host_hits_tokens = 0
        self.preemptions = 0
        self.drafts = 0
        self.accepted_draft_tokens: Counter[int] = Counter()  # by position in the draft
        self.finished: Counter[str] = Counter()
        self.rejections: Counter[str] = Counter()
        self.adapter_uses: Counter[str] = Counter()  # requests by the tier of their adapter; vLLM has no such counter
        self.ttft_s = Histogram(TTFT_S)
        self.itl_s = Histogram(ITL_S)
        self.time_per_output_token_s = Histogram(ITL_S)
        self.e2e_s = Histogram(LATENCY_S)
        self.queue_s = Histogram(LATENCY_S)
        self.inference_s = Histogram(LATENCY_S)
        self.prefill_s = Histogram(LATENCY_S)
        self.decode_s = Histogram(LATENCY_S)
        self.iteration_tokens = Histogram(ITERATION_TOKENS)
        self.request_prompt_tokens = Histogram(tokens)
        self.request_generation_tokens = Histogram(tokens)
        self.request_max_generation_tokens = Histogram(tokens)
        self.request_max_tokens = Histogram(tokens)
        self.request_computed_tokens = Histogram(tokens)
        self.request_n = Histogram(PARAMS_N)
        self.request_preemptions = Histogram(PREEMPTIONS)


@dataclass(frozen=True, slots=True)
class StepBegun:
    """A step that runs for `duration_s`."""

    duration_s: float
    disk_reads: tuple[AdapterId, ...]
    """Adapters read from disk in this step. If their files are gone, the engine dies, as vLLM's does."""


class EngineCore:
    def __init__(self, limits: EngineLimits, costs: StepCosts, rng: Random) -> None:
        self.limits = limits
        self.stats = EngineStats(max_model_len_tokens=limits.max_model_len_tokens)
        self.scheduler = Scheduler(limits)
        self.tiers = AdapterTiers(slots=limits.max_loras, host=limits.max_cpu_loras, costs=costs)
        self._costs = costs
        self._rng = rng
        self._step: Step | None = None
        self._owed_stall_s = 0.0

    @property
    def has_work(self) -> bool:
        return self.scheduler.has_work

    def add(self, seq: Sequence) -> None:
        self.scheduler.add(seq)

    def abort(self, seq: Sequence) -> None:
        """Abort the sequence immediately unless it has ended. It is not counted: vLLM 0.32 does not count lost
        clients."""
        if seq.status in (Status.RUNNING, Status.WAITING):
            self.scheduler.abort(seq)

    def load_adapter(self, adapter: AdapterId) -> float:
        """Load the adapter into a slot and return the stall in seconds. All running sequences stall as long."""
        stall_s = self.tiers.use(adapter, running=self.scheduler.running_adapters)
        self._owed_stall_s += stall_s
        return stall_s

    def begin_step(self, now_s: float) -> StepBegun:
        step = self._step = self.scheduler.schedule(now_s)
        self.stats.preemptions += len(step.preempted)
        disk_reads: list[AdapterId] = []
        stall_s, self._owed_stall_s = self._owed_stall_s, 0.0
        for seq in step.admitted:
            self._count_admission(seq, now_s)
            if seq.adapter is not None:
                self.stats.adapter_uses[self.tiers.tier_of(seq.adapter)] += 1
                disk_reads += [seq.adapter] if self.tiers.reads_disk(seq.adapter) else []
                stall_s += self.tiers.use(seq.adapter, running=self.scheduler.running_adapters)
        return StepBegun(duration_s=stall_s + self._step_s(step), disk_reads=tuple(disk_reads))

    def end_step(self, now_s: float) -> Seq[Sequence]:
        """End the step and return the sequences that got a token.

        `seq.emitted_tokens` is the token's number; FINISHED in `seq.status` means that it was the last one.
        """
        step, self._step = self._step, None
        if step is None:
            raise RuntimeError("end_step without begin_step")
        given = self.scheduler.finish_step(step, now_s)
        if step.chunks:
            self.stats.iteration_tokens.observe(step.total_tokens)
        self.stats.generation_tokens += len(given)
        for seq in given:
            self._count_token(seq, now_s)
        return given

    def _step_s(self, step: Step) -> float:
        decode_seqs = step.decode_seqs
        base_s = self._costs.step_s(prefill_tokens=step.total_tokens - decode_seqs, decode_seqs=decode_seqs)
        jitter = self._costs.jitter_ratio
        return base_s * (1 + self._rng.uniform(-jitter, jitter)) if jitter else base_s

    def _count_admission(self, seq: Sequence, now_s: float) -> None:
        if seq.marks.scheduled_s is None:
            seq.marks.scheduled_s = now_s
            self.stats.prefix_queries_tokens += seq.prompt_tokens
            self.stats.prefix_hits_tokens += seq.device_tokens
            asked = seq.prompt_tokens - seq.device_tokens if self.limits.num_host_blocks else seq.received_tokens
            self.stats.external_queries_tokens += asked
            self.stats.external_hits_tokens += seq.external_tokens + seq.host_tokens
            self.stats.host_hits_tokens += seq.host_tokens

    def _count_token(self, seq: Sequence, now_s: float) -> None:
        marks, stats = seq.marks, self.stats
        if marks.last_token_s is None:
            marks.first_token_s = now_s
            stats.ttft_s.observe(now_s - marks.arrived_s)
            stats.prompt_tokens += seq.prompt_tokens
            stats.cached_prompt_tokens += seq.device_tokens
        else:
            stats.itl_s.observe(now_s - marks.last_token_s)
            if self.limits.draft_tokens:
                self._count_draft(seq)
        marks.last_token_s = now_s
        if seq.status is Status.FINISHED:
            self._count_finish(seq, now_s)

    def _count_draft(self, seq: Sequence) -> None:
        """Count a token as an accepted draft token, or as the model's own, after which a new draft begins.

        vLLM emits a whole draft in one step. Here a step emits one token and takes as long as a step with drafts. The
        counts are the same: tokens after the first = drafts + accepted draft tokens.
        """
        place = self.limits.draft_tokens - seq.drafted_tokens
        if seq.drafted_tokens and self._rng.random() < self.limits.draft_acceptance_ratio:
            seq.drafted_tokens -= 1
            self.stats.accepted_draft_tokens[place] += 1
        else:
            seq.drafted_tokens = self.limits.draft_tokens
            self.stats.drafts += 1

    def _count_finish(self, seq: Sequence, now_s: float) -> None:
        marks, stats = seq.marks, self.stats
        scheduled_s = marks.arrived_s if marks.scheduled_s is None else marks.scheduled_s
        first_s = now_s if marks.first_token_s is None else marks.first_token_s
        stats.e2e_s.observe(now_s - marks.arrived_s)
        stats.queue_s.observe(scheduled_s - marks.arrived_s)
        stats.prefill_s.observe(first_s - scheduled_s)
        stats.decode_s.observe(now_s - first_s)
        stats.inference_s.observe(now_s - scheduled_s)
        stats.time_per_output_token_s.observe((now_s - first_s) / max(seq.emitted_tokens - 1, 1))
        stats.request_prompt_tokens.observe(seq.prompt_tokens)
        stats.request_generation_tokens.observe(seq.emitted_tokens)
        stats.request_max_generation_tokens.observe(seq.emitted_tokens)
        stats.request_computed_tokens.observe(seq.prompt_tokens - seq.cached_tokens)
        stats.request_preemptions.observe(seq.preemptions)
