"""Metrics of quotas: the step in force, requests to the bus, and charges to accounts.

All are sums over tenants. `shoal_quota_settled_tokens_total{by="engine"}` over all gateways is exactly what the
engines computed for the answers that they finished. `by="count"` is what was delivered of the others.
"""

from collections.abc import Iterator, Mapping
from typing import Protocol, get_args

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from functions.decisions.quota.outage import Regime, Step


class Settled:
    """Charges to accounts since the process began, each request once."""

    __slots__ = ("cached_tokens", "gpu_s", "input_tokens", "kv_token_s", "output_tokens", "requests")

    def __init__(self) -> None:
        self.requests = self.input_tokens = self.cached_tokens = self.output_tokens = 0
        self.kv_token_s = self.gpu_s = 0.0


class LeaseCounts(Protocol):
    """The part of the leases that metrics show."""

    gateways: int

    @property
    def asks(self) -> Mapping[str, int]: ...


class Quotas(Protocol):
    """The part of the accounts that metrics show."""

    settled_by_engine: Settled
    settled_by_count: Settled

    @property
    def leasing(self) -> LeaseCounts | None: ...

    @property
    def regime(self) -> Regime: ...

    def __len__(self) -> int: ...


class QuotaCollector(Collector):
    def __init__(self, quotas: Quotas) -> None:
        self._quotas = quotas

    def collect(self) -> Iterator[Metric]:
        regime = self._quotas.regime
        tokens = CounterMetricFamily("shoal_quota_settled_tokens", "Tokens charged to accounts", labels=["kind", "by"])
        requests = CounterMetricFamily(
            "shoal_quota_settled_requests",
            "Requests charged, by source of the token count: the engine's usage or the gateway's own count",
            labels=["by"],
        )
        held = CounterMetricFamily(
            "shoal_quota_settled_kv_token_seconds", "KV-token-seconds charged to accounts", labels=["by"]
        )
        worked = CounterMetricFamily(
            "shoal_quota_settled_gpu_seconds", "GPU-seconds charged to accounts", labels=["by"]
        )
        for by, settled in (("engine", self._quotas.settled_by_engine), ("count", self._quotas.settled_by_count)):
            tokens.add_metric(["input", by], settled.input_tokens)
            tokens.add_metric(["cached", by], settled.cached_tokens)
            tokens.add_metric(["output", by], settled.output_tokens)
            requests.add_metric([by], settled.requests)
            held.add_metric([by], settled.kv_token_s)
            worked.add_metric([by], settled.gpu_s)
        steps = GaugeMetricFamily("shoal_quota_step", "1 for the current way of enforcing limits", labels=["step"])
        for step in get_args(Step):
            steps.add_metric([step], float(regime.step == step))
        gateways = GaugeMetricFamily("shoal_quota_gateways", "Gateways that share the limits")
        gateways.add_metric([], self._quotas.leasing.gateways if self._quotas.leasing is not None else 1)
        accounts = GaugeMetricFamily("shoal_quota_accounts", "Quota accounts of tenants and keys at this gateway")
        accounts.add_metric([], len(self._quotas))
        asks = CounterMetricFamily(
            "shoal_quota_asks", "Requests that needed a lease from the bus, by outcome", labels=["outcome"]
        )
        leasing = self._quotas.leasing
        for outcome, count in leasing.asks.items() if leasing is not None else ():
            asks.add_metric([outcome], count)
        yield from (tokens, requests, held, worked, steps, gateways, accounts, asks)
