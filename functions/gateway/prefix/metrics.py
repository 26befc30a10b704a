"""Metrics of prefix caches per pool: cached share of the prompts, and errors of the prediction.

    hit ratio = cached / prompt tokens, by the engines' usage, over about the last minute (weights decay by e^(-t/60 s))

The prediction is judged in tokens: predicted for the replica that answered, predicted but not cached (over), and
cached but not predicted (under). `over / predicted` shows how reliable predictions are. Worked example
(test_worked_example_of_the_prologue): 300 predicted and 256 cached, then 0 and 100: over 44, under 100.

If replicas report their caches, `ExactPrefixStats` shows how often exact prefixes answered, for how many replicas,
and what was lost.

`functions.gateway.metrics` reports each whole answer and renders.
"""

from collections.abc import Iterator
from math import exp
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from functions.api.ids import PoolName
from functions.gateway.request.answers import Usage
from functions.telemetry.cells import CounterCell, CounterFamily

if TYPE_CHECKING:
    from functions.gateway.prefix.exact_prefixes import ExactPrefixes


_FADING_S = 60.0


class _Pool:
    __slots__ = ("at_s", "cached_tokens", "over", "predicted", "prompt_tokens", "under")

    def __init__(self, predicted: CounterCell, over: CounterCell, under: CounterCell) -> None:
        self.predicted, self.over, self.under = predicted, over, under
        self.cached_tokens = self.prompt_tokens = self.at_s = 0.0


class PrefixStats:
    """Prefix metrics of the snapshot's pools. Owned by one event loop."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._predicted = CounterFamily(
            "shoal_prefix_predicted_tokens", "Prompt tokens predicted to be cached", ["pool"], registry=registry
        )
        self._misjudged = CounterFamily(
            "shoal_prefix_misjudged_tokens",
            "Prompt tokens predicted but not cached (over), or cached but not predicted (under)",
            ["pool", "direction"],
            registry=registry,
        )
        self._ratio = Gauge(
            "shoal_prefix_hit_ratio",
            "Cached share of all prompt tokens in the last minute",
            ["pool"],
            registry=registry,
        )
        self._pools: dict[PoolName, _Pool] = {}

    def answered(self, pool: PoolName, predicted_tokens: int, usage: Usage, now_s: float) -> None:
        """Add a complete answer's tokens to the pool's fading sums, and how far the cached tokens were mispredicted."""
        figures = self._pools.get(pool) or self._add_pool(pool, now_s)
        kept_ratio = exp((figures.at_s - now_s) / _FADING_S)
        figures.at_s = now_s
        figures.prompt_tokens = figures.prompt_tokens * kept_ratio + usage.prompt_tokens
        figures.cached_tokens = figures.cached_tokens * kept_ratio + usage.cached_tokens
        if predicted_tokens:
            figures.predicted.value += predicted_tokens
        if predicted_tokens > usage.cached_tokens:
            figures.over.value += predicted_tokens - usage.cached_tokens
        elif predicted_tokens < usage.cached_tokens:
            figures.under.value += usage.cached_tokens - predicted_tokens

    def scrape(self) -> None:
        for pool, figures in self._pools.items():
            self._ratio.labels(pool).set(figures.cached_tokens / figures.prompt_tokens if figures.prompt_tokens else 0)

    def _add_pool(self, pool: PoolName, now_s: float) -> _Pool:
        figures = self._pools[pool] = _Pool(
            self._predicted.labels(pool),
            self._misjudged.labels(pool, "over"),
            self._misjudged.labels(pool, "under"),
        )
        figures.at_s = now_s
        return figures


class ExactPrefixStats(Collector):
    def __init__(self, exact: "ExactPrefixes") -> None:
        self._exact = exact

    def collect(self) -> Iterator[Metric]:
        exact = self._exact
        answers = CounterMetricFamily(
            "shoal_prefix_answers", "Prompts looked up in the cache reports of replicas.", labels=["answer"]
        )
        answers.add_metric(["known"], exact.known_total)
        answers.add_metric(["unknown"], exact.unknown_total)
        yield answers
        known = GaugeMetricFamily(
            "shoal_prefix_replicas_known", "Replicas whose cached blocks are known.", labels=["pool", "source"]
        )
        for labels, replicas in exact.view.known_replicas().items():
            known.add_metric(labels, replicas)
        yield known
        blocks = GaugeMetricFamily(
            "shoal_prefix_blocks_known", "Known cached blocks of all replicas.", labels=["pool", "source"]
        )
        for labels, number in exact.view.known_blocks().items():
            blocks.add_metric(labels, number)
        yield blocks
        ready = GaugeMetricFamily(
            "shoal_prefix_tokenizer_ready",
            "1 if the tokenizer of the pool's base model was fetched from the store, else 0 (estimate by sent text).",
            labels=["pool"],
        )
        for pool, is_ready in exact.tokenizers.ready().items():
            ready.add_metric([pool], float(is_ready))
        yield ready
        fetches = CounterMetricFamily(
            "shoal_prefix_tokenizer_fetches", "Fetches of tokenizers from the store, by outcome.", labels=["outcome"]
        )
        for outcome, number in exact.tokenizers.outcomes.items():
            fetches.add_metric([outcome], number)
        yield fetches
        yield CounterMetricFamily("shoal_prefix_lessons", "Prompts tokenized.", exact.learnt_total)
        yield CounterMetricFamily(
            "shoal_prefix_gaps",
            "Times that a replica's cached blocks became unknown because events were lost.",
            exact.view.gaps_total,
        )
        yield CounterMetricFamily(
            "shoal_prefix_news_refused", "Messages from the bus that were not valid prefix events.", exact.refused_total
        )
        yield CounterMetricFamily(
            "shoal_prefix_lessons_left_out",
            "Prompts not tokenized because the queue was full.",
            exact.learner.left_out_total,
        )
