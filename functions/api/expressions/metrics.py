"""What expressions may measure: closed tables, each metric with its dimension.

A metric that is not here cannot be written, so a typing error never becomes a condition that silently never holds.
"""

from dataclasses import dataclass
from enum import Enum


class Dimension(Enum):
    RATIO = "a percentage such as 2%"
    SECONDS = "a duration such as 500ms or 2s"
    PLAIN_SECONDS = "a number of seconds such as 0.5"  # the metric's name says the unit


@dataclass(frozen=True, slots=True)
class Metric:
    name: str
    dimension: Dimension
    meaning: str
    has_slo: bool = False  # the pool's AdmissionPolicy promises a bound for it

    @property
    def is_ratio(self) -> bool:
        return self.dimension is Dimension.RATIO


# Of the new version, over the running stage; each may also be a multiple of the control group's, such as 2x.
HALT_METRICS = (
    Metric("error_rate", Dimension.RATIO, "requests that failed, of all"),
    Metric("p50_latency", Dimension.SECONDS, "median time from request to last byte"),
    Metric("p99_latency", Dimension.SECONDS, "99th percentile of the time from request to last byte"),
    Metric("p50_ttft", Dimension.SECONDS, "median time to first token"),
    Metric("p99_ttft", Dimension.SECONDS, "99th percentile of the time to first token"),
    Metric("p99_inter_token", Dimension.SECONDS, "99th percentile of the time between two tokens"),
)

# Of a pool as a whole.
SCALE_METRICS = (
    Metric("p50_ttft", Dimension.SECONDS, "median time to first token", has_slo=True),
    Metric("p99_ttft", Dimension.SECONDS, "99th percentile of the time to first token", has_slo=True),
    Metric("p99_inter_token", Dimension.SECONDS, "99th percentile of the time between two tokens"),
    Metric("queue_seconds", Dimension.PLAIN_SECONDS, "time that a request waits in the gateway's queue"),
    Metric("kv_usage", Dimension.RATIO, "KV blocks in use, of all, in the fullest replica"),
    Metric("utilization", Dimension.RATIO, "work in progress, of what the pool can take"),
)
