"""Counters and histograms for hot paths: the text format of prometheus_client at a fifth of its cost.

One thread (the event loop) owns a cell, which holds plain numbers, so that counting takes no lock. An increment takes
0.05 us instead of 0.23, an observation 0.15 instead of 0.54, and a request needs eight of them. The scraping thread
reads the numbers one by one; a histogram's sum may be one observation ahead of its buckets, as with any scrape.

`CounterFamily` and `HistogramFamily` have prometheus_client's interface (`labels(…).inc()`) and are registered as
collectors of the same registry. Gauges, which are set once a scrape, use the library.
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
    """One counter with one set of labels."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def inc(self, amount: float = 1.0) -> None:
        self.value += amount


class HistogramCell:
    """One histogram with one set of labels; `counts` per bucket, the last one above every bound."""

    __slots__ = ("_bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self._bounds, value)] += 1  # values equal to a bound belong to its bucket
        self.sum += value

    def add(self, counts: Iterable[tuple[int, int]], total: float) -> None:
        """Add observations that were counted elsewhere: (bucket, count), and their sum."""
        for bucket, count in counts:
            self.counts[bucket] += count
        self.sum += total

    @property
    def count(self) -> int:
        return sum(self.counts)


class _Family(Collector, Generic[Cell]):
    """All cells of one metric. The caller limits the number of label sets."""

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
        """Return the cell with these label values; create it on the first call. ValueError if their number is wrong.
        The lookup costs three times an increment, so reuse the cell."""
        cell = self._cells.get(values)
        if cell is None:
            if len(values) != len(self._labelnames):
                raise ValueError(f"{self._name} has the labels {', '.join(self._labelnames) or '(none)'}, not {values}")
            cell = self._cells[values] = self._make()
        return cell

    def remove(self, *values: str) -> None:
        """End the series with these labels; a new one starts at 0."""
        self._cells.pop(values, None)

    def describe(self) -> Iterable[Metric]:
        """Report the names to the registry, which rejects duplicate names."""
        return self.collect()

    @abstractmethod
    def collect(self) -> Iterable[Metric]:
        """Return the current samples of the family for the exposition."""


class CounterFamily(_Family[CounterCell]):
    def __init__(
        self, name: str, documentation: str, labelnames: Sequence[str] = (), *, registry: CollectorRegistry
    ) -> None:
        super().__init__(name, documentation, labelnames, CounterCell, registry)

    def inc(self, amount: float = 1.0) -> None:
        """Increment the counter, which has no labels."""
        self.labels().value += amount

    def collect(self) -> Iterable[Metric]:
        family = CounterMetricFamily(self._name, self._documentation, labels=self._labelnames)
        for values, cell in list(self._cells.items()):
            family.add_metric(values, cell.value)
        yield family


class HistogramFamily(_Family[HistogramCell]):
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
        """Observe a value in the histogram, which has no labels."""
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
