"""Counters and histograms for hot paths: prometheus_client's text, at a fifth of its cost.

A cell is owned by one thread (the event loop) and holds plain numbers, so that counting takes no lock: an increment is
0.05 us instead of 0.23, an observation 0.15 instead of 0.54, eight of them per request. The scraping thread reads the
numbers one by one; a histogram's sum may be one observation ahead of its buckets, as with any scrape.

`Counter` and `Histogram` are called as prometheus_client's are (`labels(…).inc()`), and registered as collectors of the
same registry; gauges, which are set once a scrape, stay with the library.
"""

from abc import abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from typing import Generic, TypeVar

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

Cell = TypeVar("Cell")


class CounterCell:
    """One counter under one set of labels."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def inc(self, amount: float = 1.0) -> None:
        self.value += amount


class HistogramCell:
    """One histogram under one set of labels; `counts` per bucket, the last one beyond every bound."""

    __slots__ = ("_bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self._bounds, value)] += 1  # a bound belongs to its own bucket
        self.sum += value

    def add(self, counts: Iterable[tuple[int, int]], total: float) -> None:
        """Observations that were counted elsewhere: (bucket, how many), and their sum."""
        for bucket, count in counts:
            self.counts[bucket] += count
        self.sum += total

    @property
    def count(self) -> int:
        return sum(self.counts)


class _Family(Collector, Generic[Cell]):
    """All cells of one name. Whoever asks for labels bounds how many there are."""

    def __init__(
        self,
        name: str,
        documentation: str,
        labelnames: Sequence[str],
        make: Callable[[], Cell],
        registry: CollectorRegistry,
    ) -> None:
        self._name, self._documentation, self._labelnames = name, documentation, tuple(labelnames)
        self._make = make
        self._cells: dict[tuple[str, ...], Cell] = {}
        if not labelnames:
            self.labels()
        registry.register(self)

    def labels(self, *values: str) -> Cell:
        """The cell of these labels, made at the first call: three times the cost of using it, so keep it."""
        cell = self._cells.get(values)
        if cell is None:
            if len(values) != len(self._labelnames):
                raise ValueError(f"{self._name} has the labels {', '.join(self._labelnames) or '(none)'}, not {values}")
            cell = self._cells[values] = self._make()
        return cell

    def remove(self, *values: str) -> None:
        """The series of these labels ends; one that begins anew does so from 0."""
        self._cells.pop(values, None)

    def describe(self) -> Iterable[Metric]:
        """Tells the registry the names, so that two of one name are refused."""
        return self.collect()

    @abstractmethod
    def collect(self) -> Iterable[Metric]:
        """The family as it is now, for the exposition."""


class Counter(_Family[CounterCell]):
    def __init__(
        self, name: str, documentation: str, labelnames: Sequence[str] = (), *, registry: CollectorRegistry
    ) -> None:
        super().__init__(name, documentation, labelnames, CounterCell, registry)

    def inc(self, amount: float = 1.0) -> None:
        """Of a counter without labels."""
        self.labels().value += amount

    def collect(self) -> Iterable[Metric]:
        family = CounterMetricFamily(self._name, self._documentation, labels=self._labelnames)
        for values, cell in list(self._cells.items()):
            family.add_metric(values, cell.value)
        yield family


class Histogram(_Family[HistogramCell]):
    def __init__(
        self,
        name: str,
        documentation: str,
        labelnames: Sequence[str] = (),
        *,
        buckets: Sequence[float],
        registry: CollectorRegistry,
    ) -> None:
        self._bounds = tuple(sorted(buckets))
        super().__init__(name, documentation, labelnames, lambda: HistogramCell(self._bounds), registry)

    def observe(self, value: float) -> None:
        """Of a histogram without labels."""
        self.labels().observe(value)

    def collect(self) -> Iterable[Metric]:
        family = HistogramMetricFamily(self._name, self._documentation, labels=self._labelnames)
        bounds = [*map(floatToGoString, self._bounds), "+Inf"]
        for values, cell in list(self._cells.items()):
            buckets, below = [], 0
            for bound, count in zip(bounds, list(cell.counts), strict=True):
                below += count
                buckets.append((bound, below))
            family.add_metric(values, buckets, sum_value=cell.sum)
        yield family
