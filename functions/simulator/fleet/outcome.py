"""Outcome of a simulated run: results per pool and band, and what the fleet used.

    asked = served + shed + lost + waiting, always        served: its first token came, and its stream did not break

goodput = requests whose first token came within the band's SLO / all requests (or within SLO_S if it has none).
Quantiles are within 1 % (`decisions.quantile_sketch`), token gaps within 3 %.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from functions.api.ids import PoolName
from functions.decisions.admission.ticket import BANDS
from functions.decisions.quantile_sketch import QuantileSketch
from functions.gateway.request.request import Ended
from functions.simulator.fleet.token_gaps import TokenGaps


@dataclass(slots=True)
class BandOutcome:
    slo_s: float
    asked: int = 0
    served: int = 0
    in_time: int = 0
    shed: Counter[str] = field(default_factory=Counter)  # rejected, by reason
    lost: Counter[str] = field(default_factory=Counter)  # failed, by reason
    degraded: int = 0  # served by another pool than the requested one
    cold_starts: int = 0  # waited for an adapter load
    woke: int = 0  # waited for the first replica of a pool
    ttft: QuantileSketch = field(default_factory=QuantileSketch)
    queued: QuantileSketch = field(default_factory=QuantileSketch)
    answer_gaps: QuantileSketch = field(default_factory=QuantileSketch)  # mean ms between tokens, per answer

    def began(self, ttft_s: float, queued_s: float) -> None:
        self.served += 1
        self.in_time += ttft_s <= self.slo_s
        self.ttft.add(ttft_s * 1000)
        self.queued.add(queued_s * 1000)

    def broke(self, ttft_s: float, reason: str) -> None:
        """Count as lost, no longer as served, a stream that broke after its first token."""
        self.served -= 1
        self.in_time -= ttft_s <= self.slo_s
        self.lost[reason] += 1

    def merge(self, other: "BandOutcome") -> None:
        """Add the results of another pool, each measured by its own SLO."""
        self.asked += other.asked
        self.served += other.served
        self.in_time += other.in_time
        self.shed.update(other.shed)
        self.lost.update(other.lost)
        self.degraded += other.degraded
        self.cold_starts += other.cold_starts
        self.woke += other.woke
        self.ttft.merge(other.ttft)
        self.queued.merge(other.queued)
        self.answer_gaps.merge(other.answer_gaps)

    @property
    def waiting(self) -> int:
        """Number of requests that have arrived and were neither served, rejected nor lost: they wait for their first
        token."""
        return self.asked - self.served - sum(self.shed.values()) - sum(self.lost.values())

    def figures(self) -> dict[str, Any]:
        return {
            "asked": self.asked,
            "served": self.served,
            "goodput_ratio": _ratio(self.in_time, self.asked),
            "shed_ratio": _ratio(sum(self.shed.values()), self.asked),
            "shed": dict(sorted(self.shed.items())),
            "lost_ratio": _ratio(sum(self.lost.values()), self.asked),
            "lost": dict(sorted(self.lost.items())),
            "degraded_ratio": _ratio(self.degraded, self.asked),
            "cold_ratio": _ratio(self.cold_starts, self.asked),
            "ttft_p50_ms": _rounded(self.ttft.quantile(0.5)),
            "ttft_p99_ms": _rounded(self.ttft.quantile(0.99)),
            "queued_p99_ms": _rounded(self.queued.quantile(0.99)),
        }


def _one_each_band() -> tuple[QuantileSketch, ...]:
    return tuple(QuantileSketch() for _ in BANDS)


@dataclass(slots=True)
class PoolOutcome:
    bands: tuple[BandOutcome, ...]
    """Results by band of requests for this pool, whichever pool answered."""
    answering: tuple[QuantileSketch, ...] = field(default_factory=_one_each_band)
    """Milliseconds to first tokens from this pool, by band, whichever pool was requested."""
    splits: Counter[str] = field(default_factory=Counter)
    """Prefill decisions by reason, of requests that ended here; only if the pool has a prefill pool."""
    answered_tokens: int = 0
    """Prompt and output tokens of answers that this pool completed, whichever pool was requested."""


@dataclass(slots=True)
class Outcome:
    pools: dict[PoolName, PoolOutcome]
    gaps: TokenGaps = field(default_factory=TokenGaps)
    seconds: float = 0.0
    replica_seconds: float = 0.0
    busy_seconds: float = 0.0
    prompt_tokens: int = 0  # prompt tokens that reached an engine
    hit_tokens: int = 0  # prompt tokens found in an engine's cache
    preemptions: int = 0
    routes: Counter[str] = field(default_factory=Counter)  # by reason
    events: int = 0
    splits: Counter[str] = field(default_factory=Counter)  # prefill decisions by reason, in pools with a prefill pool
    retries: int = 0
    adapter_loads: int = 0

    @property
    def bands(self) -> tuple[BandOutcome, ...]:
        """Bands over all pools: with one pool its own objects, else merged copies."""
        first, *others = self.pools.values()
        if not others:
            return first.bands
        merged = tuple(BandOutcome(band.slo_s) for band in first.bands)
        for pool in (first, *others):
            for band, part in zip(merged, pool.bands, strict=True):
                band.merge(part)
        return merged

    def request_ended(self, ended: Ended) -> None:
        """Count the prefill decision of a finished request, if it had one."""
        if ended.split is not None:
            self.splits[ended.split["why"]] += 1
            self.pools[ended.admitted.model.pool].splits[ended.split["why"]] += 1

    def band(self, pool: PoolName, index: int) -> BandOutcome:
        return self.pools[pool].bands[index]

    def figures(self) -> dict[str, Any]:
        """Return the figures for `-o json` and the tables."""
        p99_s = self.gaps.quantile_s(0.99)
        return {
            "bands": {name: band.figures() for name, band in zip(BANDS, self.bands, strict=True) if band.asked},
            "itl_p99_ms": _rounded(p99_s * 1000 if p99_s is not None else None),
            "hit_ratio": _ratio(self.hit_tokens, self.prompt_tokens),
            "utilization_ratio": _ratio(self.busy_seconds, self.replica_seconds),
            "replica_hours": round(self.replica_seconds / 3600, 3),
            "output_tokens_per_s": round(self.gaps.tokens / self.seconds, 1) if self.seconds else 0.0,
            "preemptions": self.preemptions,
            "routes": dict(self.routes.most_common()),
            "retries": self.retries,
            "adapter_loads": self.adapter_loads,
            "seconds": round(self.seconds, 1),
            "events": self.events,
        }


def _ratio(part: float, whole: float) -> float | None:
    return round(part / whole, 4) if whole else None


def _rounded(value_ms: float | None) -> float | None:
    return round(value_ms, 1) if value_ms is not None else None
