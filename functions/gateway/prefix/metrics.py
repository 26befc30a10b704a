"""How much of the prompts came from caches, and whether that was foreseen: per pool, for Prometheus.

    hit ratio = cached / prompt tokens, by the engines' own usage, of the last minute or so (they fade by e^(-t/60 s))

The prediction is judged in tokens: what was foreseen for the replica that answered, what of that was too much (over),
and what was cached without being foreseen (under). `over / predicted` says how far the predictions can be believed.
Worked example (test_worked_example_of_the_prologue): 300 foreseen and 256 cached, then 0 and 100: over 44, under 100.

Neighbours: `core` reports each whole answer; `metrics` renders.
"""

from math import exp

from prometheus_client import CollectorRegistry, Gauge

from functions.api.ids import PoolName
from functions.gateway.request.relay import Usage
from functions.telemetry.cells import Counter, CounterCell

_FADING_S = 60.0


class _Pool:
    __slots__ = ("at_s", "cached_tokens", "over", "predicted", "prompt_tokens", "under")

    def __init__(self, predicted: CounterCell, over: CounterCell, under: CounterCell) -> None:
        self.predicted, self.over, self.under = predicted, over, under
        self.cached_tokens = self.prompt_tokens = self.at_s = 0.0


class PrefixFigures:
    """Owned by one event loop. Its pools are the snapshot's, of which there are few."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._predicted = Counter(
            "shoal_prefix_predicted_tokens", "Prompt tokens foreseen in a cache", ["pool"], registry=registry
        )
        self._misjudged = Counter(
            "shoal_prefix_misjudged_tokens",
            "Foreseen and not cached (over), or cached and not foreseen (under)",
            ["pool", "direction"],
            registry=registry,
        )
        self._ratio = Gauge(
            "shoal_prefix_hit_ratio", "Cached of all prompt tokens in the last minute", ["pool"], registry=registry
        )
        self._pools: dict[PoolName, _Pool] = {}

    def answered(self, pool: PoolName, predicted_tokens: int, usage: Usage, now_s: float) -> None:
        """A whole answer, with what was foreseen for the replica that gave it."""
        figures = self._pools.get(pool) or self._begin(pool, now_s)
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

    def _begin(self, pool: PoolName, now_s: float) -> _Pool:
        figures = self._pools[pool] = _Pool(
            self._predicted.labels(pool),
            self._misjudged.labels(pool, "over"),
            self._misjudged.labels(pool, "under"),
        )
        figures.at_s = now_s
        return figures
