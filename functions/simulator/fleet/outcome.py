"""What became of a simulated run: for each band who was served and how soon, and what the fleet did for it.

goodput = requests whose first token came within the band's promise / all that asked (or within SLO_S without one).
Quantiles are within 1 % (`decisions.quantile_sketch`), token gaps within 3 %.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from functions.decisions.admission_ticket import BANDS
from functions.decisions.quantile_sketch import QuantileSketch
from functions.simulator.fleet.token_gaps import TokenGaps


@dataclass(slots=True)
class BandOutcome:
    slo_s: float
    asked: int = 0
    served: int = 0
    in_time: int = 0
    shed: Counter[str] = field(default_factory=Counter)  # by reason
    ttft: QuantileSketch = field(default_factory=QuantileSketch)
    queued: QuantileSketch = field(default_factory=QuantileSketch)

    def began(self, ttft_s: float, queued_s: float) -> None:
        self.served += 1
        self.in_time += ttft_s <= self.slo_s
        self.ttft.add(ttft_s * 1000)
        self.queued.add(queued_s * 1000)

    def figures(self) -> dict[str, Any]:
        return {
            "asked": self.asked,
            "served": self.served,
            "goodput_ratio": _ratio(self.in_time, self.asked),
            "shed_ratio": _ratio(sum(self.shed.values()), self.asked),
            "shed": dict(sorted(self.shed.items())),
            "ttft_p50_ms": _rounded(self.ttft.quantile(0.5)),
            "ttft_p99_ms": _rounded(self.ttft.quantile(0.99)),
            "queued_p99_ms": _rounded(self.queued.quantile(0.99)),
        }


@dataclass(slots=True)
class Outcome:
    bands: tuple[BandOutcome, ...]
    gaps: TokenGaps = field(default_factory=TokenGaps)
    seconds: float = 0.0
    replica_seconds: float = 0.0
    busy_seconds: float = 0.0
    prompt_tokens: int = 0  # of what reached an engine
    hit_tokens: int = 0  # of those in its cache
    preemptions: int = 0
    routes: Counter[str] = field(default_factory=Counter)  # by reason
    events: int = 0

    def figures(self) -> dict[str, Any]:
        """For `-o json` and the tables."""
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
            "seconds": round(self.seconds, 1),
            "events": self.events,
        }


def _ratio(part: float, whole: float) -> float | None:
    return round(part / whole, 4) if whole else None


def _rounded(value_ms: float | None) -> float | None:
    return round(value_ms, 1) if value_ms is not None else None
