"""Signals of a pool for its controller: figures per second, summed over a past interval, with a delay.

Gateways and replicas report once a second; `close` ends such a second. `signals_over` sums up the last seconds known
at a time. Replica counts have no delay, since a controller knows its own. `decisions.autoscaling.signals` defines the
figures; `simulation` closes the seconds and reads the signals.
"""

from collections import deque
from dataclasses import dataclass, field

from functions.decisions.autoscaling.signals import PoolSignals, step_utilization
from functions.decisions.quantile_sketch import QuantileSketch
from functions.simulator.fleet.replica import ReplicaCounts
from functions.simulator.fleet.token_gaps import TokenGaps


@dataclass(slots=True)
class Second:
    """Events of a pool within one second."""

    arrivals: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0  # expected
    deferrable_tokens: int = 0  # prompt and output tokens of the batch band
    shed: int = 0
    overflow: int = 0  # part of `shed`, see `decisions.autoscaling.signals`
    degraded: int = 0
    prompts: int = 0  # prompts at a prefill pool, without batch, read or not
    prompts_wait_s: float = 0.0  # total wait of these prompts until they were read
    ttft: QuantileSketch = field(default_factory=QuantileSketch)


@dataclass(frozen=True, slots=True)
class PoolTotals:
    """State of a pool's engines and admission queues at the end of a second; sums since the start."""

    busy_s: float
    ready_s: float  # accelerator seconds of ready replicas
    asked_tokens: int
    hit_tokens: int
    gaps: TokenGaps
    kv_usage_ratio: float
    queue_s: float
    queued_tokens: float
    foreground_queued_tokens: float = 0.0


@dataclass(frozen=True, slots=True)
class _Closed:
    at_s: float
    second: Second
    look: PoolTotals


class PoolFigures:
    """Figures of one pool. `reads`: True for a prefill pool."""

    __slots__ = ("_closed", "_reads", "now")

    def __init__(self, most_seconds: int, *, reads: bool = False) -> None:
        self.now = Second()
        self._reads = reads
        self._closed: deque[_Closed] = deque(maxlen=most_seconds + 1)

    def close(self, at_s: float, look: PoolTotals) -> None:
        self._closed.append(_Closed(at_s, self.now, look))
        self.now = Second()

    def signals_over(self, now_s: float, seconds: float, step_s: float, counts: ReplicaCounts) -> PoolSignals:
        """Return the signals over the last `seconds` before `now_s`; the first state is only the base of the sums. With
        fewer than two states there are only replica counts."""
        known = [closed for closed in self._closed if closed.at_s <= now_s]
        known = [closed for closed in known if closed.at_s >= known[-1].at_s - seconds - 1e-6]
        if len(known) < 2:
            return PoolSignals(
                at_s=now_s,
                ready=counts.ready,
                starting=counts.starting,
                warm=counts.warm,
                draining=counts.draining,
            )
        first, last = known[0], known[-1]
        lasted_s = last.at_s - first.at_s
        ttft = QuantileSketch()
        for closed in known[1:]:
            ttft.merge(closed.second.ttft)
        gaps = last.look.gaps.since(first.look.gaps)
        sums = _sums([closed.second for closed in known[1:]])
        return PoolSignals(
            at_s=last.at_s,
            ready=counts.ready,
            starting=counts.starting,
            warm=counts.warm,
            draining=counts.draining,
            arrivals_per_s=sums.arrivals / lasted_s,
            arriving_tokens_per_s=(sums.prompt_tokens * _miss_ratio(first.look, last.look) + sums.output_tokens)
            / lasted_s,
            deferrable_tokens_per_s=sums.deferrable_tokens / lasted_s,
            queue_seconds=sums.prompts_wait_s / sums.prompts if sums.prompts else last.look.queue_s,
            queued_tokens=last.look.queued_tokens,
            foreground_queued_tokens=last.look.foreground_queued_tokens,
            ttft_p50_s=_seconds(ttft, 0.5),
            ttft_p95_s=_seconds(ttft, 0.95),
            ttft_p99_s=_seconds(ttft, 0.99),
            itl_p95_s=gaps.quantile_s(0.95) if gaps.tokens > 0.0 else None,
            itl_p99_s=gaps.quantile_s(0.99) if gaps.tokens > 0.0 else None,
            kv_usage_ratio=last.look.kv_usage_ratio,
            utilization_ratio=self._utilization(first.look, last.look, gaps, step_s),
            shed_per_s=sums.shed / lasted_s,
            overflow_per_s=sums.overflow / lasted_s,
            degraded_per_s=sums.degraded / lasted_s,
        )

    def _utilization(self, first: PoolTotals, last: PoolTotals, gaps: TokenGaps, step_s: float) -> float | None:
        ready_s = last.ready_s - first.ready_s
        if ready_s <= 0.0:
            return None
        busy_ratio = (last.busy_s - first.busy_s) / ready_s
        if self._reads:
            return min(1.0, busy_ratio)
        return step_utilization(step_s, gaps.seconds / gaps.tokens if gaps.tokens > 0.0 else None, busy_ratio)


def _seconds(sketch: QuantileSketch, q: float) -> float | None:
    value_ms = sketch.quantile(q)
    return value_ms / 1000 if value_ms is not None else None


def _sums(seconds: list[Second]) -> Second:
    return Second(
        arrivals=sum(second.arrivals for second in seconds),
        prompt_tokens=sum(second.prompt_tokens for second in seconds),
        output_tokens=sum(second.output_tokens for second in seconds),
        deferrable_tokens=sum(second.deferrable_tokens for second in seconds),
        shed=sum(second.shed for second in seconds),
        overflow=sum(second.overflow for second in seconds),
        degraded=sum(second.degraded for second in seconds),
        prompts=sum(second.prompts for second in seconds),
        prompts_wait_s=sum(second.prompts_wait_s for second in seconds),
    )


def _miss_ratio(first: PoolTotals, last: PoolTotals) -> float:
    """Return the share of prompt tokens looked up between two states that had to be computed; 1 if there were none."""
    asked = last.asked_tokens - first.asked_tokens
    return 1.0 - (last.hit_tokens - first.hit_tokens) / asked if asked else 1.0
