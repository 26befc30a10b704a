"""Gauges of the replicas that this gateway routes to, by pool and zone, and of replicas that fell silent.

A replica that sends no heartbeats is forgotten after 15 s, and its series would end without a trace. So a replica
that was present at the last scrape and is missing now counts as `silent` for ten minutes, or until it is back. A
replica that was draining, or whose pool was removed by a push, does not count. Worked example
(test_silent_replica_is_counted_for_a_while): three replicas are ready in zone a and one in b. When b's
node dies, `{zone="b", state="ready"}` is 0 and `{zone="b", state="silent"}` is 1 for ten minutes.
"""

from collections import Counter as Counts
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from functions.decisions.health.failure_domains import Domain
from functions.fleet.heartbeat import Heartbeat

SILENT_FOR_S = 600.0
MAX_SILENT = 4096
PHASES = ("starting", "ready", "warm", "draining", "hung", "dead", "silent")


@dataclass(frozen=True, slots=True)
class _Gone:
    pool: str
    zone: str
    at_s: float


class ReplicaGauges(Collector):
    """Collector of replica gauges: `update` updates them on the loop, the scraping thread reads them."""

    def __init__(self) -> None:
        self._present: tuple[Heartbeat, ...] = ()
        self._silent: dict[str, _Gone] = {}
        self._suspected: Counts[Domain] = Counts()

    def update(
        self,
        heartbeats: Iterable[Heartbeat],
        now_s: float,
        suspected: Iterable[Domain] = (),
        *,
        declared: Container[str] | None = None,
    ) -> None:
        """Record the replicas at this scrape, and those that fell silent without draining in the last SILENT_FOR_S.

        `suspected`: the suspected node or zone of each replica that is avoided.
        `declared`: declared pools; None if unknown.
        """
        self._suspected = Counts(suspected)
        former = {each.replica_id: each for each in self._present}
        self._present = tuple(heartbeats)
        present = {each.replica_id for each in self._present}
        silent = {
            name: gone
            for name, gone in self._silent.items()
            if name not in present and now_s - gone.at_s < SILENT_FOR_S
        }
        for name, last in former.items():
            if name not in present and last.phase != "draining" and len(silent) < MAX_SILENT:
                silent.setdefault(name, _Gone(last.pool, last.zone, now_s))
        if declared is not None:
            silent = {name: gone for name, gone in silent.items() if gone.pool in declared}
        self._silent = silent

    def collect(self) -> Iterator[Metric]:
        present, silent = self._present, tuple(self._silent.values())
        by_pool = Counts([*((each.pool, each.phase) for each in present), *((gone.pool, "silent") for gone in silent)])
        by_zone = Counts([*((each.zone, each.phase) for each in present), *((gone.zone, "silent") for gone in silent)])
        pools = GaugeMetricFamily(
            "shoal_pool_replicas", "Replicas by phase; silent: lost its heartbeats", labels=["pool", "state"]
        )
        zones = GaugeMetricFamily("shoal_zone_replicas", "Replicas by zone and phase", labels=["zone", "state"])
        for family, counts in ((pools, by_pool), (zones, by_zone)):
            for name in sorted({name for name, _ in counts}):
                for phase in PHASES:
                    family.add_metric([name, phase], counts[name, phase])
        suspected = GaugeMetricFamily(
            "shoal_suspected_replicas",
            "Replicas avoided because their node or zone fell silent or is not ready",
            labels=["kind", "name"],
        )
        for (kind, domain), count in sorted(self._suspected.items()):
            suspected.add_metric([kind, domain], count)
        yield from (pools, zones, suspected, *self._ready_metrics())

    def _ready_metrics(self) -> Iterator[Metric]:
        kv = GaugeMetricFamily("shoal_pool_kv_usage_ratio", "KV cache in use in the fullest replica", labels=["pool"])
        service = GaugeMetricFamily(
            "shoal_replica_service_seconds",
            "Time that one outstanding request adds to the next one",
            labels=["pool", "replica"],
        )
        fullest: dict[str, float] = {}
        for each in self._present:
            if each.phase == "ready":
                fullest[each.pool] = max(each.kv_usage_ratio, fullest.get(each.pool, 0.0))
                service.add_metric([each.pool, each.replica_id], each.service_ms / 1000)
        for pool, ratio in fullest.items():
            kv.add_metric([pool], ratio)
        yield from (kv, service)
