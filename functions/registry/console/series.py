"""Series of each pool's figures, for sparklines.

    a window (15m | 1h | 6h | 1d) ──► Prometheus, with the queries below ──► else the registry's samples of an hour

All figures have the same times: `points` of them, `step_s` apart, from `since_unix_s` on. Only the first POOLS_SHOWN
pools by name are included, with the total number of pools. Answers are cached for some seconds, so that ten open
consoles send one query.
"""

import asyncio
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from functions.registry.console.prometheus import Prometheus, PrometheusAway, Range
from functions.registry.console.samples import FIGURES, Figure, Samples

Window = Literal["15m", "1h", "6h", "1d"]
WINDOWS_S: Final[Mapping[Window, float]] = {"15m": 900.0, "1h": 3600.0, "6h": 21_600.0, "1d": 86_400.0}
POINTS = 60
POOLS_SHOWN = 100
KEPT_S = 5.0
# Each result has the label `pool` and no other.
QUERIES: Final[Mapping[Figure, str]] = {
    "ttft_p99_s": "histogram_quantile(0.99, sum by (pool, le) (rate(shoal_ttft_seconds_bucket[2m])))",
    "gap_p99_s": "histogram_quantile(0.99, sum by (pool, le) (rate(shoal_inter_token_seconds_bucket[2m])))",
    "queue_s": "histogram_quantile(0.99, sum by (pool, le) (rate(shoal_queue_seconds_bucket[2m])))",
    "kv_usage_ratio": "max by (pool) (shoal_pool_kv_usage_ratio)",
    "tokens_per_s": 'sum by (pool) (rate(shoal_tokens_total{kind="completion"}[2m]))',
}
_MISSING = "no Prometheus is configured (SHOAL_REGISTRY_PROMETHEUS_URL)"

Series = Mapping[Figure, Mapping[str, list[float | None]]]


@dataclass(frozen=True, slots=True)
class _CachedAnswer:
    until_s: float
    answer: dict[str, Any]


class PoolSeries:
    """Source of the series, with a cache per window. Owned by one event loop."""

    def __init__(
        self,
        samples: Samples,
        prometheus: Prometheus | None,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
    ) -> None:
        self._samples = samples
        self._prometheus = prometheus
        self._clock = clock
        self._wall_clock = wall_clock
        self._kept: dict[Window, _CachedAnswer] = {}
        self._asking = asyncio.Lock()

    async def answer_for(self, window: Window) -> dict[str, Any]:
        async with self._asking:
            kept = self._kept.get(window)
            if kept is None or self._clock() >= kept.until_s:
                answer = await self._build_answer(window)
                kept = self._kept[window] = _CachedAnswer(self._clock() + KEPT_S, answer)
            return kept.answer

    async def _build_answer(self, window: Window) -> dict[str, Any]:
        step_s = WINDOWS_S[window] / POINTS
        end_s = math.floor(self._wall_clock() / step_s) * step_s  # on a grid, so that all consoles get the same times
        over = Range(end_s - (POINTS - 1) * step_s, end_s, step_s)
        source, trouble, found = await self._fetch_series(over)
        pools = sorted({pool for each in found.values() for pool in each})
        shown = frozenset(pools[:POOLS_SHOWN])
        return {
            "object": "fleet.series",
            "window": window,
            "source": source,
            "trouble": trouble,
            "since_unix_s": over.start_s,
            "step_s": step_s,
            "points": POINTS,
            "pools": len(pools),
            "series": {
                figure: {pool: values for pool, values in sorted(found[figure].items()) if pool in shown}
                for figure in FIGURES
            },
        }

    async def _fetch_series(self, over: Range) -> tuple[str, str, Series]:
        own = self._samples.series(over.start_s, over.step_s, POINTS)
        if self._prometheus is None:
            return "registry", _MISSING, own
        prometheus = self._prometheus
        try:
            answers = await asyncio.gather(*(prometheus.query_range(QUERIES[figure], over) for figure in FIGURES))
            found = {figure: values_by_pool(each, over) for figure, each in zip(FIGURES, answers, strict=True)}
        except PrometheusAway as error:
            return "registry", str(error), own
        return "prometheus", "", found


def values_by_pool(answer: list[dict[str, Any]], over: Range) -> dict[str, list[float | None]]:
    """Return each pool's values at the range's POINTS times, None where there is none; pools without values are left
    out. Raises PrometheusAway for an answer of another form."""
    found: dict[str, list[float | None]] = {}
    try:
        for each in answer:
            values: list[float | None] = [None] * POINTS
            for at_s, text in each["values"]:
                place, value = round((float(at_s) - over.start_s) / over.step_s), float(text)
                if 0 <= place < POINTS and math.isfinite(value):
                    values[place] = value
            pool = str(each["metric"].get("pool", ""))
            if pool and any(value is not None for value in values):
                found[pool] = values
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise PrometheusAway(f"Prometheus answers with unreadable values: {error!r}") from error
    return found
