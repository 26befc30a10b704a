"""Prometheus metrics of the gateway. Label values are bounded: pools come from the snapshot, models are the busiest
ones and `other` (`Busiest`), and the rest are small fixed sets. No label contains a tenant.

The hot path uses cells that are made once per label set: `labels()` costs three times an increment.
"""

from bisect import bisect_left
from collections.abc import Callable
from functools import lru_cache
from typing import Literal

from prometheus_client import CollectorRegistry

from functions.api.ids import PoolName
from functions.decisions.routing.choice import NoReplica, Prediction
from functions.decisions.routing.retry import AttemptFailure
from functions.gateway.prefix.metrics import PrefixStats
from functions.gateway.request.request import CascadeSpend, Ended
from functions.gateway.routing.adapter_loads import ColdOutcome
from functions.gateway.routing.rollout import judge
from functions.http.connections import Closed
from functions.telemetry.cells import CounterCell, CounterFamily, HistogramCell, HistogramFamily
from functions.telemetry.gap_histogram import MIDDLES_S

_TTFT_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.5, 5.0, 10.0, 30.0, 60.0)
_INTER_TOKEN_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.035, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_OF_GAP = tuple(bisect_left(_INTER_TOKEN_BUCKETS, middle_s) for middle_s in MIDDLES_S)
_COLD_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 30.0)
_REQUEST_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
_MAX_LABEL_SETS = 4096
NAMED_MODELS = 50
OTHER = "other"
RANK_EVERY_S = 60.0
_MOST_CHANGES = 10  # changes of named models per minute
_CANDIDATES = 4096
_TIMES_BUSIER = 2


class Metrics:
    def __init__(self, registry: CollectorRegistry | None = None, *, named_models: int = NAMED_MODELS) -> None:
        self.registry = registry or CollectorRegistry()
        by_pool = ["pool", "class"]
        self._requests = CounterFamily(
            "shoal_requests",
            "Requests by HTTP status; models beyond the busiest are `other`",
            ["model", "class", "code"],
            registry=self.registry,
        )
        self._ttft = HistogramFamily(
            "shoal_ttft_seconds", "Time to first token", by_pool, buckets=_TTFT_BUCKETS, registry=self.registry
        )
        self._inter_token = HistogramFamily(
            "shoal_inter_token_seconds",
            "Time between two tokens of a stream, each gap",
            by_pool,
            buckets=_INTER_TOKEN_BUCKETS,
            registry=self.registry,
        )
        self._model_ttft = HistogramFamily(
            "shoal_model_ttft_seconds",
            "Time to first token by model; those beyond the busiest are `other`",
            ["model"],
            buckets=_TTFT_BUCKETS,
            registry=self.registry,
        )
        self._seconds = HistogramFamily(
            "shoal_request_seconds",
            "Time from a request's arrival to the end of its answer",
            by_pool,
            buckets=_REQUEST_BUCKETS,
            registry=self.registry,
        )
        self._tokens = CounterFamily(
            "shoal_tokens", "Tokens, by the engine's count", ["pool", "kind"], registry=self.registry
        )
        self._routes = CounterFamily(
            "shoal_route_decisions", "Routing decisions by reason", ["reason"], registry=self.registry
        )
        self._retries = CounterFamily("shoal_retries", "Attempts after the first", registry=self.registry)
        self._failures = CounterFamily(
            "shoal_attempt_failures", "Attempts at a replica that failed", ["failure"], registry=self.registry
        )
        self._shed = CounterFamily(
            "shoal_shed", "Requests refused for lack of capacity", ["reason"], registry=self.registry
        )
        self._degraded = CounterFamily(
            "shoal_degraded", "Requests that another pool answered", ["from", "to"], registry=self.registry
        )
        self._taken_over = CounterFamily(
            "shoal_pool_takeovers",
            "Requests that another pool of the same model answered",
            ["from", "to"],
            registry=self.registry,
        )
        self._hedge_lost = CounterFamily(
            "shoal_hedge_lost_tokens",
            "Predicted prompt tokens that the slower of two attempts computed; charged to no tenant",
            ["pool"],
            registry=self.registry,
        )
        self._cascade = CounterFamily(
            "shoal_cascade",
            "Answers of small models in cascades, by verdict",
            ["from", "to", "verdict"],
            registry=self.registry,
        )
        self._splits = CounterFamily(
            "shoal_prefill_paths",
            "Answers of pools with a prefill pool: `pays` if that pool computed the prompt, else the reason why not",
            ["pool", "why"],
            registry=self.registry,
        )
        self._closed = CounterFamily(
            "shoal_connections_closed",
            "Client connections closed or refused at a limit: crowded (idle, closed for a new one), address (limit per "
            "address), no_room (all are busy), slow_reader (others need the memory of its unread answer)",
            ["reason"],
            registry=self.registry,
        )
        self._quota = CounterFamily(
            "shoal_quota_rejections", "Requests over a tenant's own limit", ["dimension"], registry=self.registry
        )
        self._cold = HistogramFamily(
            "shoal_cold_load_seconds",
            "Time from the first request for an adapter that no replica has loaded to the end of its load",
            ["outcome"],
            buckets=_COLD_BUCKETS,
            registry=self.registry,
        )
        self._rollout_requests = CounterFamily(
            "shoal_rollout_requests", "Requests of channels in rollout", ["model", "group"], registry=self.registry
        )
        self._rollout_failures = CounterFamily(
            "shoal_rollout_failures",
            "Failed requests of channels in rollout: status 500 and above, except 503 for lack of capacity",
            ["model", "group"],
            registry=self.registry,
        )
        self._bus_lost = CounterFamily(
            "shoal_bus_lost",
            "Times that the bus was unreachable",
            ["what"],
            registry=self.registry,
        )
        self.prefixes = PrefixStats(self.registry)
        self._models = Busiest(named_models, self._forget_model)
        self._request_children: dict[tuple[str, str, int], CounterCell] = {}
        self._model_children = lru_cache(_MAX_LABEL_SETS)(self._model_ttft.labels)
        self._pool_children = lru_cache(_MAX_LABEL_SETS)(self._children_of)
        self._route_child = lru_cache(16)(self._routes.labels)

    def routed(self, decision: Prediction | NoReplica) -> None:
        self._route_child(decision.reason).value += 1.0

    def shed(self, reason: str) -> None:
        """Count a request that was rejected for want of capacity, by `reason`, a label of shoal_shed_total."""
        self._shed.labels(reason).inc()

    def degraded(self, asked: PoolName, answers: PoolName, *, is_same_model: bool) -> None:
        """Count a request that pool `answers` starts to answer instead of `asked`: taken over if by the same model."""
        (self._taken_over if is_same_model else self._degraded).labels(asked, answers).inc()

    def cold_load(self, outcome: ColdOutcome, seconds: float) -> None:
        self._cold.labels(outcome).observe(seconds)

    def retried(self) -> None:
        self._retries.inc()

    def attempt_failed(self, failure: AttemptFailure) -> None:
        self._failures.labels(failure.value).inc()

    def bus_lost(self, what: Literal["heartbeats", "evidence", "pins", "homes"]) -> None:
        self._bus_lost.labels(what).inc()

    def connection_closed(self, reason: Closed) -> None:
        self._closed.labels(reason).inc()

    def refused(self, status: int) -> None:
        """Count a request that was rejected before its model was known."""
        self._request_child("none", "none", status).inc()

    def quota_rejected(self, dimension: str) -> None:
        self._quota.labels(dimension).inc()

    def ended(self, ended: Ended) -> None:
        """Record an admitted request that has ended: status, times, tokens, and its rollout, cascade and prefill."""
        admitted, timeline, usage = ended.admitted, ended.timeline, ended.usage
        pool = admitted.model.pool
        model = self._models.label(admitted.model.id)
        key = (model, admitted.service_class, ended.status)
        (self._request_children.get(key) or self._request_child(*key)).value += 1.0
        ttft, inter_token, seconds, prompt, cached, completion = self._pool_children(pool, admitted.service_class)
        seconds.observe(timeline.ended_s - timeline.received_s)
        if timeline.first_token_s:
            ttft.observe(timeline.first_token_s - timeline.received_s)
            self._model_children(model).observe(timeline.first_token_s - timeline.received_s)
            if ended.token_gaps:
                counts = [(_OF_GAP[gap], times) for gap, times in ended.token_gaps]
                inter_token.add(counts, sum(MIDDLES_S[gap] * times for gap, times in ended.token_gaps))
        if admitted.split is not None:
            self._rollout_requests.labels(model, admitted.split.group).inc()
            if judge(ended.status, ended.code, admitted.split.group) == "failed" and not ended.gave_up:
                self._rollout_failures.labels(model, admitted.split.group).inc()
        if usage is not None:
            prompt.value += usage.prompt_tokens
            cached.value += usage.cached_tokens
            completion.value += usage.completion_tokens
            if ended.status == 200 and ended.prediction is not None:
                self.prefixes.answered(pool, ended.prediction.cached_tokens, usage, timeline.ended_s)
        if ended.cascade_spend is not None:
            self._cascade_spent(ended.cascade_spend)
        if ended.split is not None:
            self._splits.labels(pool, ended.split["why"]).inc()
        if ended.cascade is not None:  # escalated / (escalated + kept) is the escalation rate
            self._cascade.labels(*ended.cascade[:3]).inc()

    def hedge_lost(self, pool: PoolName, prompt_tokens: int) -> None:
        """Count the prompt tokens that the dropped, slower one of two attempts computed without use."""
        self._hedge_lost.labels(pool).inc(prompt_tokens)

    def rank_models(self, now_s: float) -> None:
        """Update the models that have series of their own; at most once every RANK_EVERY_S."""
        self._models.rank(now_s)

    def _request_child(self, model: str, service_class: str, status: int) -> CounterCell:
        """Create, remember and return the counter cell of these labels, at the first such request."""
        cell = self._requests.labels(model, service_class, str(status))
        self._request_children[model, service_class, status] = cell
        return cell

    def _forget_model(self, model: str) -> None:
        for key in [key for key in self._request_children if key[0] == model]:
            del self._request_children[key]
            self._requests.remove(key[0], key[1], str(key[2]))
        self._model_ttft.remove(model)
        for group in ("candidate", "control"):
            self._rollout_requests.remove(model, group)
            self._rollout_failures.remove(model, group)
        self._model_children.cache_clear()

    def _cascade_spent(self, spend: CascadeSpend) -> None:
        pool, usage = spend.model.pool, spend.usage
        self._tokens.labels(pool, "prompt").inc(usage.prompt_tokens)
        self._tokens.labels(pool, "cached").inc(usage.cached_tokens)
        self._tokens.labels(pool, "completion").inc(usage.completion_tokens)

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


class Busiest:
    """The busiest models by name and all others together: a bound for a label that grows with tenants' adapters.

    The first `most` models get names. Then, once a minute, an unnamed model with more than twice the requests of the
    quietest named one replaces it: one series begins and another ends, at most `_MOST_CHANGES` a minute. Models
    without any request since the last ranking lose their names to any model that had one. Worked example
    (test_busy_model_replaces_a_quiet_one): there are two names, and the models have 5, 40 and 100
    requests a minute. The model with 5 has a name first; after a minute the names are those with 40 and 100.

    Counting is one dict lookup; of the unnamed models, the first `_CANDIDATES` of a minute are counted. Owned by one
    event loop. `forget` is called with each name that was replaced.
    """

    def __init__(self, most: int, forget: Callable[[str], None]) -> None:
        self._most = most
        self._forget = forget
        self._named: dict[str, int] = {}  # requests since the last ranking
        self._others: dict[str, int] = {}
        self._ranked_s: float | None = None

    def label(self, name: str) -> str:
        """Count one request of a model; return the label of its series: its name, or OTHER without own series."""
        named = self._named
        if name in named:
            named[name] += 1
            return name
        if len(named) < self._most:
            named[name] = 1
            return name
        others = self._others
        if name in others:
            others[name] += 1
        elif len(others) < _CANDIDATES:
            others[name] = 1
        return OTHER

    def rank(self, now_s: float) -> None:
        """Let busier models take over the series of the least busy; does nothing within RANK_EVERY_S of the last."""
        if self._ranked_s is None:
            self._ranked_s = now_s
        if now_s - self._ranked_s < RANK_EVERY_S:
            return
        self._ranked_s = now_s
        rising = sorted(self._others, key=self._others.__getitem__, reverse=True)[:_MOST_CHANGES]
        falling = sorted(self._named, key=self._named.__getitem__)
        for up, down in zip(rising, falling, strict=False):
            if self._others[up] <= _TIMES_BUSIER * self._named[down]:
                break
            del self._named[down]
            self._named[up] = 0
            self._forget(down)
        self._named = dict.fromkeys(self._named, 0)
        self._others.clear()
