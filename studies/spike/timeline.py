"""Timeline of a pool, every two seconds of a run: replicas, waiting requests, first tokens, rejected and degraded
shares.

Shares and quantiles cover the interval since the last sample (quantiles: the last five), from the outcome's sums;
None if there were no requests.
"""

from collections import deque
from dataclasses import dataclass, field

from functions.api.ids import PoolName
from functions.decisions.admission.ticket import BANDS
from functions.decisions.quantile_sketch import QuantileSketch
from functions.simulator.fleet.outcome import BandOutcome
from functions.simulator.fleet.simulation import Simulation

EVERY_S = 2.0
_WINDOW = 5  # samples for a quantile
_INTERACTIVE, _BATCH = BANDS.index("interactive"), BANDS.index("batch")


@dataclass(frozen=True, slots=True)
class Sums:
    """Sums of one band since the beginning."""

    asked: int
    shed: int
    lost: int
    degraded: int
    in_time: int
    ttft: dict[int, int]

    @classmethod
    def from_band(cls, band: BandOutcome) -> "Sums":
        return cls(
            band.asked, sum(band.shed.values()), sum(band.lost.values()), band.degraded, band.in_time,
            band.ttft.buckets(),
        )  # fmt: skip

    def p99_ms(self, since: "Sums") -> float | None:
        """Return the p99 of first tokens since the earlier sums."""
        new = {bucket: count - since.ttft.get(bucket, 0) for bucket, count in self.ttft.items()}
        return QuantileSketch.from_buckets({bucket: count for bucket, count in new.items() if count > 0}).quantile(0.99)


@dataclass(slots=True)
class Timeline:
    """One entry for each sample."""

    at_s: list[float] = field(default_factory=list)
    ready: list[int] = field(default_factory=list)
    starting: list[int] = field(default_factory=list)
    warm: list[int] = field(default_factory=list)
    waiting: list[int] = field(default_factory=list)  # waiting for their first token, in gateways and engines
    p99_ms: list[float | None] = field(default_factory=list)
    shed_ratio: list[float | None] = field(default_factory=list)  # share of interactive requests
    batch_shed_ratio: list[float | None] = field(default_factory=list)
    degraded_ratio: list[float | None] = field(default_factory=list)  # share of interactive requests


class Recorder:
    """An actor of a simulation that fills the timeline."""

    def __init__(self, pool: PoolName) -> None:
        self._pool = pool
        self.timeline = Timeline()
        self.sums: list[tuple[float, Sums, Sums]] = []  # time, interactive, batch
        self._window: deque[Sums] = deque(maxlen=_WINDOW + 1)

    def act(self, simulation: Simulation) -> None:
        bands, line, counts = simulation.outcome.bands, self.timeline, simulation.counts(self._pool)
        interactive, batch = Sums.from_band(bands[_INTERACTIVE]), Sums.from_band(bands[_BATCH])
        self._window.append(interactive)
        line.at_s.append(simulation.now_s)
        line.ready.append(counts.ready)
        line.starting.append(counts.starting)
        line.warm.append(counts.warm)
        line.waiting.append(bands[_INTERACTIVE].waiting + bands[_BATCH].waiting)
        line.p99_ms.append(interactive.p99_ms(self._window[0]) if len(self._window) > 1 else None)
        former = self.sums[-1][1:] if self.sums else (interactive, batch)
        line.shed_ratio.append(_part(interactive.shed - former[0].shed, interactive.asked - former[0].asked))
        line.degraded_ratio.append(
            _part(interactive.degraded - former[0].degraded, interactive.asked - former[0].asked)
        )  # fmt: skip
        line.batch_shed_ratio.append(_part(batch.shed - former[1].shed, batch.asked - former[1].asked))
        self.sums.append((simulation.now_s, interactive, batch))


def _part(part: int, whole: int) -> float | None:
    return min(1.0, max(0.0, part / whole)) if whole else None
