"""The adapter cache's Prometheus page, read from its parts at each scrape."""

from collections.abc import Iterator
from typing import get_args

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from functions.replica.adapter_cache.read_through import ReadThrough, Result


class _Collector(Collector):
    def __init__(self, cache: ReadThrough) -> None:
        self._cache = cache

    def collect(self) -> Iterator[Metric]:
        cache, objects = self._cache, self._cache.objects
        requests = CounterMetricFamily(
            "shoal_region_cache_requests",
            "Objects that the region's adapter cache was asked for; joined: another one's read was on its way.",
            labels=["result"],
        )
        for result in get_args(Result):
            requests.add_metric([result], cache.results[result])
        yield requests
        yield CounterMetricFamily(
            "shoal_region_cache_store_bytes", "What it read from the store.", cache.store_bytes_total
        )
        yield CounterMetricFamily(
            "shoal_region_cache_evicted", "Objects that made room for others.", objects.evicted_total
        )
        yield CounterMetricFamily(
            "shoal_region_cache_rotten", "Objects that its disk did not keep.", objects.rotten_total
        )
        yield GaugeMetricFamily("shoal_region_cache_bytes", "On its disk.", objects.total_bytes)


def page(cache: ReadThrough) -> bytes:
    registry = CollectorRegistry()
    registry.register(_Collector(cache))
    return generate_latest(registry)
