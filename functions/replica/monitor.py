"""Monitor of the engine: once a second, poll it, judge the evidence, and probe it if polling is not enough.

A tick takes at most one check timeout even if the engine hangs; probes run in parallel to ticks. The client's errors
become the decision's evidence here.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

from functions.api.ids import EngineName
from functions.api.snapshot import Task
from functions.decisions.health import engine as engine_health
from functions.decisions.health import engine_rates, pace, reload_rate, token_rate
from functions.decisions.health.engine import Counters, EnginePhase, Evidence, HealthAnswer, HealthPolicy, Probe
from functions.decisions.health.engine_rates import RateCounters
from functions.decisions.health.pace import PaceMeter, WorkCounters
from functions.decisions.health.reload_rate import ReloadCounters, ReloadRate
from functions.decisions.health.token_rate import TokenRate
from functions.engines.client import EngineClient
from functions.engines.errors import EngineError, EngineHung, EngineRefused, EngineUnreachable
from functions.engines.metrics import EngineMetrics
from functions.fleet.own_stalls import StallGuard
from functions.fleet.tasks import Supervised
from functions.replica.cold_start import ColdStart
from functions.replica.status import Adapters, AgentStatus, EngineLoad
from functions.replica.warm_up import WarmUp
from functions.replica.weights import LoadedWeights


@dataclass(frozen=True, slots=True)
class EnginePoll:
    """Result of one poll; `metrics` is None if they were missing or unreadable."""

    health: HealthAnswer
    metrics: EngineMetrics | None


async def poll_engine(engine: EngineClient) -> EnginePoll:
    """Request and return the engine's health and metrics, both concurrently, so that a stopped engine costs one timeout
    and not two."""
    health, metrics = await asyncio.gather(_ask_health(engine), _read_metrics(engine))
    return EnginePoll(health, metrics)


async def _ask_health(engine: EngineClient) -> HealthAnswer:
    try:
        await engine.health()
    except EngineUnreachable:
        return "refused"
    except EngineHung:
        return "timed_out"
    except EngineError:  # a 503, or an answer that no engine sends
        return "unwell"
    return "ok"


async def _read_metrics(engine: EngineClient) -> EngineMetrics | None:
    try:
        return await engine.metrics()
    except EngineError:
        return None


class EngineProber:
    """The agent's own one-token requests (or equally cheap ones for other tasks), one at a time, and their totals."""

    def __init__(self, engine: EngineClient, model: str, timeout_s: float, clock: Callable[[], float]) -> None:
        self._engine, self._model, self._timeout_s, self._clock = engine, model, timeout_s, clock
        self.task: Task = "generate"  # the pool's task in the newest snapshot
        self.newest = Probe()
        self.begun = self.answered = 0
        self.answered_s = 0.0  # total seconds of the answered probes

    def mark_pending(self) -> None:
        """Make a pending probe that starts now the newest one, and count it. Call before `run` is scheduled."""
        self.begun += 1
        self.newest = Probe("pending", started_s=self._clock())

    async def run(self) -> None:
        started = self.newest
        try:
            await self._engine.probe(self._model, self._timeout_s, self.task)
        except EngineHung as error:
            ended = replace(started, state="timed_out", detail=str(error))
        except EngineRefused as error:
            ended = replace(started, state="busy" if error.retryable else "failed", detail=str(error))
        except EngineError as error:
            ended = replace(started, state="failed", detail=str(error))
        else:
            ended = replace(started, state="answered")
            self.answered += 1
            self.answered_s += self._clock() - started.started_s
        self.newest = replace(ended, ended_s=self._clock())


def counters_of(metrics: EngineMetrics) -> Counters:
    return Counters(
        prompt_tokens=metrics.prompt_tokens_total,
        generation_tokens=metrics.generation_tokens_total,
        steps=metrics.iterations_total,
    )


def rate_counters_of(metrics: EngineMetrics, prober: EngineProber) -> RateCounters:
    """Return the engine's counters behind its rates, requests and their seconds without the agent's own probes, which
    are far cheaper than any tenant's request."""
    return RateCounters(
        finished=metrics.finished_total - prober.answered,
        e2e_s=metrics.e2e_s_total - prober.answered_s,
        prefill_s=metrics.prefill_s_total,
        computed_prompt_tokens=metrics.prefill_computed_tokens_total,
        running=metrics.running,
    )


def work_counters_of(metrics: EngineMetrics, prober: EngineProber) -> WorkCounters:
    """Return the engine's counters behind its pace, with finished requests counted without the agent's own probes,
    which do not queue and compute next to nothing."""
    return WorkCounters(
        finished=metrics.finished_total - prober.answered,
        queue_s=metrics.queue_s_total,
        prefill_s=metrics.prefill_s_total,
        computed_tokens=metrics.prefill_computed_tokens_total,
        gap_s=metrics.inter_token_s_total,
        gaps=metrics.inter_tokens_total,
        running=metrics.running,
        waiting=metrics.waiting,
    )


def load_of(metrics: EngineMetrics, before: EngineMetrics | None) -> EngineLoad:
    """Return the engine's load from its metrics. Decode speed is one stream's tokens per second, from the mean gap
    between tokens since the last poll (`before`)."""
    return EngineLoad(
        running=metrics.running,
        waiting=metrics.waiting,
        kv_usage_ratio=metrics.kv_usage_ratio,
        kv_blocks_total=metrics.num_gpu_blocks or 0,
        kv_block_tokens=metrics.block_size_tokens or 16,
        decode_tokens_per_s=_decode_tokens_per_s(metrics, before),
        draft_tokens_total=metrics.draft_tokens_total,
        accepted_draft_tokens_total=metrics.accepted_draft_tokens_total,
        host_kv_bytes=metrics.host_kv_bytes,
        host_hit_tokens_total=metrics.host_hit_tokens_total,
    )


def _has_read(metrics: EngineMetrics, before: EngineMetrics | None) -> bool:
    """Return True if more prompt tokens than a probe has were computed since the last poll (`before`; None: since the
    start)."""
    former = before.prefill_computed_tokens_total if before is not None else 0.0
    return metrics.prefill_computed_tokens_total - former > _PROBE_TOKENS


def _decode_tokens_per_s(metrics: EngineMetrics, before: EngineMetrics | None) -> float:
    if before is None:
        return 0.0
    gaps = metrics.inter_tokens_total - before.inter_tokens_total
    seconds = metrics.inter_token_s_total - before.inter_token_s_total
    return gaps / seconds if gaps > 0 and seconds > 0 else 0.0


TICK_S = 1.0
_PROBE_TOKENS = 64

_log = logging.getLogger(__name__)


class Monitor:
    def __init__(
        self,
        status: AgentStatus,
        engine: EngineClient,
        prober: EngineProber,
        policy: HealthPolicy,
        tasks: Supervised,
        *,
        warm_up: WarmUp,
        weights: LoadedWeights | None = None,
        cold_start: ColdStart | None = None,
        pace_every_s: float = pace.PACE_EVERY_S,
        on_new_engine: Callable[[], None] = lambda: None,
    ) -> None:
        self._pace_every_s = pace_every_s
        self._status = status
        self._engine = engine
        self._prober = prober
        self._policy = policy
        self._tasks = tasks
        self._warm_up = warm_up
        self._weights = weights
        self._cold_start = cold_start or ColdStart(None)
        self._on_new_engine = on_new_engine  # called for each process of the engine, once, when it is ready
        self._is_measured = False  # this engine process's start is being measured
        self._is_new = True  # this engine process has not been seen ready yet
        self._metrics: EngineMetrics | None = None
        self._version_is_due = False
        self._rounds = StallGuard(TICK_S, status.clock())
        self.metrics_failures = 0  # polls of a listening engine without readable metrics

    async def run(self) -> None:
        clock = self._status.clock
        while True:
            started_s = clock()
            await self.tick()
            await asyncio.sleep(max(0.0, started_s + TICK_S - clock()))

    async def tick(self) -> None:
        """Poll the engine, judge its health unless this loop was stalled, update the status, and start a probe if one
        is due."""
        polled = await poll_engine(self._engine)
        now_s = self._status.clock()
        if polled.metrics is not None:
            self._record_metrics(polled.metrics, now_s)
        elif polled.health == "ok":
            self.metrics_failures += 1
        evidence = Evidence(
            health=polled.health,
            counters=counters_of(polled.metrics) if polled.metrics is not None else None,
            outstanding=self._status.load.outstanding,
            probe=self._probe(polled.health, now_s),
            warming=self._status.warming,
        )
        if polled.health == "ok":
            self._cold_start.record_listening(
                polled.metrics.process_began_unix_s if polled.metrics is not None else None
            )
        if self._rounds.is_on_time(now_s):
            self._judge(evidence, now_s)
        else:  # this loop was stalled: the engine's answers meanwhile were not read
            self._status.judged_s = now_s
        if self._is_measured and not self._status.warming and not self._status.cold_start:
            self._is_measured = False
            self._status.cold_start = await self._cold_start.stages()
        if self._version_is_due:
            await self._learn_version()
        if self._status.computes and engine_health.probe_due(self._status.health, evidence, now_s, self._policy):
            self._prober.mark_pending()
            self._tasks.once("probe", self._prober.run())

    def _probe(self, health: HealthAnswer, now_s: float) -> Probe:
        """Return the newest probe, or one answered now for a sleeping engine whose server answers."""
        if not self._status.computes and health == "ok":
            return Probe("answered", started_s=now_s, ended_s=now_s)
        return self._prober.newest

    def _record_metrics(self, metrics: EngineMetrics, now_s: float) -> None:
        status = self._status
        if self._metrics is not None and metrics.process_began_unix_s != self._metrics.process_began_unix_s:
            self._is_new = True  # it restarted between two polls
        status.load_read_s = now_s
        status.busy_adapters = frozenset(map(EngineName, metrics.running_adapters | metrics.waiting_adapters))
        status.load = load_of(metrics, self._metrics)
        if status.load.outstanding or _has_read(metrics, self._metrics):
            status.worked_s = now_s
        status.rates = engine_rates.update(status.rates, rate_counters_of(metrics, self._prober))
        reloaded = ReloadCounters(metrics.kv_load_s_total, metrics.host_hit_tokens_total)
        status.reload = reload_rate.observe(
            status.reload, reloaded, status.declared_reload, has_host=metrics.keeps_kv_in_host
        )
        work = work_counters_of(metrics, self._prober)
        status.pace = pace.observe(status.pace, work, now_s, self._pace_every_s)
        status.token_rate = token_rate.observe(status.token_rate, metrics.generation_tokens_total, now_s)
        self._metrics = metrics

    def _judge(self, evidence: Evidence, now_s: float) -> None:
        status = self._status
        before = status.health
        status.health = engine_health.judge(before, evidence, now_s, self._policy)
        status.condemned = engine_health.condemned(status.health, now_s, self._policy)
        status.judged_s = now_s
        if status.health.phase != before.phase:
            self._on_phase_change(before.phase)
        if status.health.phase == "ready" and self._is_new:
            self._on_first_ready()

    def _on_phase_change(self, before: EnginePhase) -> None:
        status = self._status
        _log.warning("engine %s -> %s: %s", before, status.health.phase, status.health.reason or "it answers")
        if status.health.phase == "dead":
            status.pace, status.token_rate = PaceMeter(), TokenRate()
            status.reload = ReloadRate()
            status.load, status.adapters = EngineLoad(), Adapters()  # a dead process runs nothing
            status.busy_adapters = frozenset()
            self._metrics = None
            self._is_new = True
            self._cold_start.renew()
            status.cold_start = {}
            status.asleep = False  # a new process is awake
            if self._weights is not None:
                self._weights.forget()
        self._version_is_due = status.health.phase == "ready"

    def _on_first_ready(self) -> None:
        """Once per engine process, when it is first ready: notify `on_new_engine`, detect its weights and, if it serves
        its first requests, start the warm-up."""
        self._is_new = False
        self._on_new_engine()
        if self._weights is not None:
            began_unix_s = self._metrics.process_began_unix_s if self._metrics is not None else None
            self._tasks.once("weights", self._weights.detect_weights(began_unix_s))
        if self._status.computes and not self._has_served():
            self._cold_start.record_first_answer()
            self._is_measured = True
            if self._warm_up.mark_warming():
                self._tasks.once("warm-up", self._warm_up.run(self._prober.task))

    def _has_served(self) -> bool:
        """Return True if the engine has answered other requests than this agent's probes, so that it was warmed up
        under a former agent."""
        return self._metrics is not None and self._metrics.finished_total > self._prober.begun

    async def _learn_version(self) -> None:
        """Read the engine's version into the status. If the engine does not answer, as when it is busy, the next tick
        retries."""
        try:
            self._status.engine_version = await self._engine.version()
            self._version_is_due = False
        except EngineError as error:
            self._version_is_due = isinstance(error, EngineHung | EngineUnreachable)
            _log.info("the engine's version cannot be read: %s", error)
