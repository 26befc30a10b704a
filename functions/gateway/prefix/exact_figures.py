"""What Prometheus sees of exact prefixes: how often they answered, of how many replicas, what was lost on the way."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from functions.gateway.prefix.exact_prefixes import ExactPrefixes


class ExactFigures(Collector):
    def __init__(self, exact: "ExactPrefixes") -> None:
        self._exact = exact

    def collect(self) -> Iterator[Metric]:
        exact = self._exact
        answers = CounterMetricFamily(
            "shoal_prefix_answers", "Prompts looked up in what replicas tell of their caches.", labels=["answer"]
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
            "shoal_prefix_blocks_known", "Their cached blocks together.", labels=["pool", "source"]
        )
        for labels, number in exact.view.known_blocks().items():
            blocks.add_metric(labels, number)
        yield blocks
        yield CounterMetricFamily("shoal_prefix_lessons", "Prompts tokenised.", exact.learnt_total)
        yield CounterMetricFamily(
            "shoal_prefix_gaps", "Times that a replica's blocks became unknown: news was lost.", exact.view.gaps_total
        )
        yield CounterMetricFamily(
            "shoal_prefix_news_refused", "Messages from the bus that were no news.", exact.refused_total
        )
        yield CounterMetricFamily(
            "shoal_prefix_lessons_left_out",
            "Prompts not tokenised: too many at a time.",
            exact.learner.left_out_total,
        )
