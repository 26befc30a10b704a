"""What Prometheus sees of the gateway. Label values are bounded: models and pools come from the snapshot, the rest from
small fixed sets; no tenant anywhere.

The hot path calls cells that were made once per label set: `labels()` costs three times an increment.
"""

from functools import lru_cache
from typing import TYPE_CHECKING, Literal

from prometheus_client import CollectorRegistry, Gauge

from functions.api.ids import PoolName
from functions.decisions.catalogue import Catalogue
from functions.decisions.routing.choice import NoReplica, Prediction
from functions.decisions.routing.retry import Failure
from functions.gateway.chat.composition.figures import CompositionFigures
from functions.gateway.prefix.metrics import PrefixFigures
from functions.gateway.routing.adapter_loads import ColdOutcome
from functions.gateway.routing.pins import SessionPins
from functions.telemetry.cells import Counter, CounterCell, Histogram, HistogramCell

if TYPE_CHECKING:
    from functions.gateway.gateway import Gateway
    from functions.gateway.quota.settlement import Aside
    from functions.gateway.request.exchange import Exchange

_TTFT_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.5, 5.0, 10.0, 30.0, 60.0)
_INTER_TOKEN_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.035, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 2.5)
_COLD_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 30.0)
_REQUEST_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
_PHASES = ("starting", "ready", "warm", "draining", "hung", "dead")
_MAX_LABEL_SETS = 4096


class Metrics:
    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or CollectorRegistry()
        by_pool = ["pool", "class"]
        self._requests = Counter(
            "shoal_requests", "Requests by outcome", ["model", "class", "code"], registry=self.registry
        )
        self._ttft = Histogram(
            "shoal_ttft_seconds", "To the first event", by_pool, buckets=_TTFT_BUCKETS, registry=self.registry
        )
        self._inter_token = Histogram(
            "shoal_inter_token_seconds",
            "Mean gap between a stream's events, one observation a stream",
            by_pool,
            buckets=_INTER_TOKEN_BUCKETS,
            registry=self.registry,
        )
        self._seconds = Histogram(
            "shoal_request_seconds", "To the end", by_pool, buckets=_REQUEST_BUCKETS, registry=self.registry
        )
        self._tokens = Counter("shoal_tokens", "Tokens by the engine's count", ["pool", "kind"], registry=self.registry)
        self._routes = Counter("shoal_route_decisions", "Routing decisions", ["reason"], registry=self.registry)
        self._retries = Counter("shoal_retries", "Attempts after the first", registry=self.registry)
        self._failures = Counter("shoal_attempt_failures", "Failed attempts", ["failure"], registry=self.registry)
        self._shed = Counter("shoal_shed", "Requests refused for want of capacity", ["reason"], registry=self.registry)
        self._degraded = Counter(
            "shoal_degraded", "Requests that another pool answered", ["from", "to"], registry=self.registry
        )
        self._hedges = Counter(
            "shoal_hedges", "Second attempts beside slow first ones", ["outcome"], registry=self.registry
        )
        self._hedges_before = (0, 0)
        self._hedge_lost = Counter(
            "shoal_hedge_lost_tokens",
            "Prompt tokens, as predicted, that the slower of two attempts had to compute: paid by nobody",
            ["pool"],
            registry=self.registry,
        )
        self._quarantined = Counter(
            "shoal_prompts_quarantined",
            "Requests refused, since two replicas failed on them",
            registry=self.registry,
        )
        self._quarantined_before = 0
        self._traces_dropped = Counter(
            "shoal_traces_dropped", "Rows that could not be written in time", registry=self.registry
        )
        self._traces_dropped_before = 0
        self._cascade = Counter(
            "shoal_cascade",
            "Answers of small models by what became of them",
            ["from", "to", "verdict"],
            registry=self.registry,
        )
        self._quota = Counter(
            "shoal_quota_rejections", "Requests over a tenant's own limit", ["dimension"], registry=self.registry
        )
        self._cold = Histogram(
            "shoal_cold_load_seconds",
            "Adapters that no replica had loaded, from the first request for one to the end of its load",
            ["outcome"],
            buckets=_COLD_BUCKETS,
            registry=self.registry,
        )
        self._cold_waiting = Gauge(
            "shoal_cold_load_waiting", "Requests that wait for an adapter", registry=self.registry
        )
        self._rollout_requests = Counter(
            "shoal_rollout_requests", "Requests of channels in rollout", ["model", "group"], registry=self.registry
        )
        self._pins = Gauge("shoal_session_pins", "Sessions pinned to a version in rollout", registry=self.registry)
        self._untold_pins = Gauge(
            "shoal_session_pins_untold", "Those that other gateways have not been told of yet", registry=self.registry
        )
        self._lost_pins = Counter(
            "shoal_session_pins_lost", "Pins that other gateways will not be told of", registry=self.registry
        )
        self._lost_pins_before = 0
        self._bus_lost = Counter(
            "shoal_bus_lost",
            "Times that the bus was out of reach",
            ["what"],
            registry=self.registry,
        )
        self.prefixes = PrefixFigures(self.registry)
        self.compositions = CompositionFigures(self.registry)
        self._open = Gauge("shoal_open_requests", "Requests under way", registry=self.registry)
        self._connections = Gauge("shoal_client_connections", "Client connections open", registry=self.registry)
        self._uploads = Gauge(
            "shoal_upload_bytes", "Held for bodies over 64 KiB that are on their way", registry=self.registry
        )
        self._epoch = Gauge("shoal_snapshot_epoch", "The snapshot in use", registry=self.registry)
        self._age = Gauge(
            "shoal_snapshot_age_seconds", "Since the registry last vouched for it", registry=self.registry
        )
        self._refused_snapshots = Counter(
            "shoal_snapshot_refused", "Snapshots that could not be believed", registry=self.registry
        )
        self._refused_before = 0
        self._phase = Gauge(
            "shoal_replica_state", "1 for the phase it is in", ["replica", "state"], registry=self.registry
        )
        self._kv = Gauge("shoal_kv_usage_ratio", "KV cache in use", ["replica"], registry=self.registry)
        self._request_child = lru_cache(_MAX_LABEL_SETS)(self._requests.labels)
        self._pool_children = lru_cache(_MAX_LABEL_SETS)(self._children_of)
        self._route_child = lru_cache(16)(self._routes.labels)

    def routed(self, decision: Prediction | NoReplica) -> None:
        self._route_child(decision.reason).value += 1.0

    def shed(self, reason: str) -> None:
        """A request was refused for want of a replica that can answer it."""
        self._shed.labels(reason).inc()

    def degraded(self, asked: PoolName, answers: PoolName) -> None:
        """Another pool than the one that was asked for begins to answer."""
        self._degraded.labels(asked, answers).inc()

    def cascaded(self, small: PoolName, large: PoolName, verdict: str) -> None:
        """escalated / (escalated + kept) is the escalation rate."""
        self._cascade.labels(small, large, verdict).inc()

    def cold_load(self, outcome: ColdOutcome, seconds: float) -> None:
        self._cold.labels(outcome).observe(seconds)

    def retried(self) -> None:
        self._retries.inc()

    def attempt_failed(self, failure: Failure) -> None:
        self._failures.labels(failure.value).inc()

    def bus_lost(self, what: Literal["heartbeats", "evidence", "pins"]) -> None:
        self._bus_lost.labels(what).inc()

    def refused(self, status: int) -> None:
        """A request that never had a model."""
        self._request_child("none", "none", str(status)).inc()

    def quota_rejected(self, dimension: str) -> None:
        self._quota.labels(dimension).inc()

    def answered(self, exchange: "Exchange", status: int, events: int) -> None:
        admitted, timeline, usage = exchange.admitted, exchange.timeline, exchange.usage
        self._request_child(admitted.model.id, admitted.service_class, str(status)).value += 1.0
        ttft, inter_token, seconds, prompt, cached, completion = self._pool_children(
            admitted.model.pool, admitted.service_class
        )
        seconds.observe(timeline.ended_s - timeline.received_s)
        if timeline.first_token_s:
            ttft.observe(timeline.first_token_s - timeline.received_s)
            if admitted.stream and events > 1:
                inter_token.observe((timeline.ended_s - timeline.first_token_s) / (events - 1))
        if admitted.split is not None:
            self._rollout_requests.labels(admitted.model.id, admitted.split.group).inc()
        if usage is not None:
            prompt.value += usage.prompt_tokens
            cached.value += usage.cached_tokens
            completion.value += usage.completion_tokens
        if exchange.aside is not None:
            self._spent_aside(exchange.aside)

    def hedge_lost(self, pool: PoolName, prompt_tokens: int) -> None:
        """The slower one of two attempts is dropped; its engine has computed up to so much for nobody."""
        self._hedge_lost.labels(pool).inc(prompt_tokens)

    def _spent_aside(self, aside: "Aside") -> None:
        pool, usage = aside.pool, aside.usage
        self._tokens.labels(pool, "prompt").inc(usage.prompt_tokens)
        self._tokens.labels(pool, "cached").inc(usage.cached_tokens)
        self._tokens.labels(pool, "completion").inc(usage.completion_tokens)

    def scrape(self, gateway: "Gateway") -> None:
        """Bring the gauges up to date; called before each rendering, on the loop."""
        self.prefixes.scrape()
        self._open.set(gateway.open_exchanges)
        self._connections.set(len(gateway.watched))
        self._uploads.set(gateway.uploads.held_bytes)
        self._cold_waiting.set(gateway.cold.waiting if gateway.cold is not None else 0)
        self._scrape_pins(gateway.splits.pins)
        begun, won = gateway.hedging.begun_total, gateway.hedging.won_total
        self._hedges.labels("begun").inc(begun - self._hedges_before[0])
        self._hedges.labels("won").inc(won - self._hedges_before[1])
        self._hedges_before = (begun, won)
        self._quarantined.inc(gateway.quarantine.refused_total - self._quarantined_before)
        self._quarantined_before = gateway.quarantine.refused_total
        self._traces_dropped.inc(gateway.traces.dropped_total - self._traces_dropped_before)
        self._traces_dropped_before = gateway.traces.dropped_total
        if gateway.catalogue is not None:
            self._epoch.set(gateway.catalogue.epoch)
            self._age.set(_snapshot_age_s(gateway, gateway.catalogue))
        refused = gateway.snapshot_source.refused_total if gateway.snapshot_source is not None else 0
        self._refused_snapshots.inc(refused - self._refused_before)
        self._refused_before = refused
        self._phase.clear()
        self._kv.clear()
        for heartbeat, _ in gateway.fleet.heartbeats():
            self._kv.labels(heartbeat.replica_id).set(heartbeat.kv_usage_ratio)
            for phase in _PHASES:
                self._phase.labels(heartbeat.replica_id, phase).set(int(heartbeat.phase == phase))

    def _scrape_pins(self, pins: SessionPins) -> None:
        self._pins.set(len(pins))
        self._untold_pins.set(pins.untold)
        self._lost_pins.inc(pins.lost_total - self._lost_pins_before)
        self._lost_pins_before = pins.lost_total

    def _children_of(
        self, pool: PoolName, service_class: str
    ) -> tuple[HistogramCell, HistogramCell, HistogramCell, CounterCell, CounterCell, CounterCell]:
        return (
            self._ttft.labels(pool, service_class),
            self._inter_token.labels(pool, service_class),
            self._seconds.labels(pool, service_class),
            self._tokens.labels(pool, "prompt"),
            self._tokens.labels(pool, "cached"),
            self._tokens.labels(pool, "completion"),
        )


def _snapshot_age_s(gateway: "Gateway", catalogue: Catalogue) -> float:
    """Since the registry last said that there is no newer one; started from the cache, since it was compiled."""
    source = gateway.snapshot_source
    vouched_unix_s = source.confirmed_unix_s if source is not None else None
    since_unix_s = vouched_unix_s if vouched_unix_s is not None else catalogue.snapshot.compiled_unix_s
    return max(0.0, gateway.wall_clock() - since_unix_s)
