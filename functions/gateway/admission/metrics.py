"""Metrics of the admission queues: waiting times and the current content of each queue.

Most requests do not wait. For them only a count is incremented, because a histogram's observe() costs 1 us. The
histogram is computed on a scrape.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from functions.api.ids import PoolName
from functions.decisions.admission.queue import Admission
from functions.decisions.admission.ticket import BANDS
from functions.decisions.overload.ladder import RUNGS, Rungs

BUCKETS_S = (0.0, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


class WaitTimes:
    """Waiting times in one pool's queue, by band."""

    __slots__ = ("_buckets", "_sums_s", "passed")

    def __init__(self) -> None:
        self.passed = [0] * len(BANDS)  # requests that did not wait
        self._buckets = [[0] * (len(BUCKETS_S) + 1) for _ in BANDS]
        self._sums_s = [0.0] * len(BANDS)

    def waited(self, band: int, seconds: float) -> None:
        self._buckets[band][bisect_left(BUCKETS_S, seconds)] += 1
        self._sums_s[band] += seconds

    def histogram(self, band: int) -> tuple[list[tuple[str, float]], float]:
        """Return the number of the band's requests with at most each bound's wait, and the sum of all waits in seconds.

        Requests that did not wait count in every bound.
        """
        cumulated, found = self.passed[band], []
        for bound_s, count in zip((*BUCKETS_S, float("inf")), self._buckets[band], strict=True):
            cumulated += count
            found.append(("+Inf" if bound_s == float("inf") else str(bound_s), float(cumulated)))
        return found, self._sums_s[band]


class QueuesCollector(Collector):
    def __init__(self, figures: Callable[[], Iterable[tuple[PoolName, Admission, WaitTimes]]]) -> None:
        self._figures = figures

    def collect(self) -> Iterator[Metric]:
        waits = HistogramMetricFamily(
            "shoal_queue_seconds", "Seconds that requests spent in the admission queue", labels=["pool", "class"]
        )
        depth = GaugeMetricFamily("shoal_queue_depth_tokens", "Tokens in the queue", labels=["pool", "band"])
        requests = GaugeMetricFamily("shoal_queue_requests", "Requests in the queue", labels=["pool", "band"])
        overloaded = GaugeMetricFamily(
            "shoal_pool_overloaded",
            "1 while the pool is overloaded and serves the newest requests first",
            labels=["pool"],
        )
        for pool, admission, times in self._figures():
            overloaded.add_metric([pool], float(admission.is_overloaded))
            for band, name in enumerate(BANDS):
                buckets, sum_s = times.histogram(band)
                waits.add_metric([pool, name], buckets, sum_s)
                depth.add_metric([pool, name], admission.queues[band].queued_kv_tokens)
                requests.add_metric([pool, name], admission.queues[band].waiting)
        yield from (waits, depth, requests, overloaded)


class LadderCollector(Collector):
    """Steps of each pool's overload ladder: whether each is active, and its strength."""

    def __init__(self, ladders: Callable[[], Mapping[PoolName, Rungs]]) -> None:
        self._ladders = ladders

    def collect(self) -> Iterator[Metric]:
        labels = ["pool", "rung"]
        on = GaugeMetricFamily(
            "shoal_overload_rung", "1 while the step of the overload ladder is active", labels=labels
        )
        strength = GaugeMetricFamily(
            "shoal_overload_strength",
            "Share of requests that the active overload step rejects (shed: of the band that loses most) or sends to "
            "other pools (shift: of all)",
            labels=labels,
        )
        for pool, rungs in self._ladders().items():
            for rung in RUNGS[:2]:  # the controller reports the other steps
                on.add_metric([pool, rung], float(rung in rungs.on))
                strength.add_metric([pool, rung], rungs.strength(rung))
        yield from (on, strength)
