"""What one tick asks of the engine, as evidence: the border between the client's errors and the decision's words."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace

from functions.decisions.health.engine import Counters, HealthAnswer, Probe
from functions.decisions.health.engine_rates import RateCounters
from functions.engines.client import EngineClient
from functions.engines.errors import EngineError, EngineHung, EngineRefused, EngineUnreachable
from functions.engines.metrics import EngineMetrics
from functions.replica.status import Load


@dataclass(frozen=True, slots=True)
class Look:
    """One look at the engine; `metrics` is None where they did not come or could not be read."""

    health: HealthAnswer
    metrics: EngineMetrics | None


async def look(engine: EngineClient) -> Look:
    """Both questions at once, so that a stopped engine costs one timeout and not two."""
    health, metrics = await asyncio.gather(_ask_health(engine), _read_metrics(engine))
    return Look(health, metrics)


async def _ask_health(engine: EngineClient) -> HealthAnswer:
    try:
        await engine.health()
    except EngineUnreachable:
        return "refused"
    except EngineHung:
        return "timed_out"
    except EngineError:  # a 503, or an answer that no engine gives
        return "unwell"
    return "ok"


async def _read_metrics(engine: EngineClient) -> EngineMetrics | None:
    try:
        return await engine.metrics()
    except EngineError:
        return None


class Prober:
    """Our one-token requests: one at a time, and what they added to the engine's sums."""

    def __init__(self, engine: EngineClient, model: str, timeout_s: float, clock: Callable[[], float]) -> None:
        self._engine, self._model, self._timeout_s, self._clock = engine, model, timeout_s, clock
        self.newest = Probe()
        self.answered = 0
        self.answered_s = 0.0  # seconds that the answered ones took in all

    def begin(self) -> None:
        """Before `run` is scheduled: from now on a probe is pending."""
        self.newest = Probe("pending", started_s=self._clock())

    async def run(self) -> None:
        started = self.newest
        try:
            await self._engine.probe(self._model, self._timeout_s)
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


def rate_counters_of(metrics: EngineMetrics, prober: Prober) -> RateCounters:
    """The engine's sums without our own probes, which are far cheaper than any tenant's request."""
    return RateCounters(
        finished=metrics.finished_total - prober.answered,
        e2e_s=metrics.e2e_s_total - prober.answered_s,
        prefill_s=metrics.prefill_s_total,
        computed_prompt_tokens=metrics.prefill_computed_tokens_total,
        running=metrics.running,
    )


def load_of(metrics: EngineMetrics, before: EngineMetrics | None) -> Load:
    """The gauges; decode speed is one stream's: the mean gap between tokens since the look before."""
    return Load(
        running=metrics.running,
        waiting=metrics.waiting,
        kv_usage_ratio=metrics.kv_usage_ratio,
        kv_blocks_total=metrics.num_gpu_blocks or 0,
        kv_block_tokens=metrics.block_size_tokens or 16,
        decode_tokens_per_s=_decode_tokens_per_s(metrics, before),
    )


def _decode_tokens_per_s(metrics: EngineMetrics, before: EngineMetrics | None) -> float:
    if before is None:
        return 0.0
    gaps = metrics.inter_tokens_total - before.inter_tokens_total
    seconds = metrics.inter_token_s_total - before.inter_token_s_total
    return gaps / seconds if gaps > 0 and seconds > 0 else 0.0
