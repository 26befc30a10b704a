"""Figures of each router: a table with bars, or JSON."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from loadtests.routing.live import Sample
from studies.routers.live import LiveRouterName

_BAR = 40  # characters of the longest bar


def figures(samples: Sequence[Sample], warmup_s: float) -> dict[str, Any]:
    """Return times and ratios of requests sent after the warm-up, and failures of the whole run."""
    good = [sample for sample in samples if sample.good and sample.at_s >= warmup_s]
    times = sorted(sample.ttft_ms for sample in good)
    prompt = sum(sample.prompt_tokens for sample in good)
    return {
        "requests": len(samples),
        "counted": len(good),
        "failed": sum(not sample.good for sample in samples),
        "failures": Counter(f"{each.status} {each.error}" for each in samples if not each.good).most_common(3),
        "ttft_p50_ms": quantile(times, 0.5),
        "ttft_p90_ms": quantile(times, 0.9),
        "ttft_p99_ms": quantile(times, 0.99),
        "prefix_hit_ratio": round(sum(sample.cached_tokens for sample in good) / prompt, 3) if prompt else 0.0,
        "cold_ratio": round(sum(sample.load_ms is not None for sample in good) / len(good), 3) if good else 0.0,
    }


def quantile(ordered: Sequence[float], q: float) -> float:
    return round(ordered[min(len(ordered) - 1, int(q * len(ordered)))], 1) if ordered else 0.0


def table(found: Mapping[LiveRouterName, Mapping[str, Any]]) -> str:
    """Return one line per router, with a bar for its p99."""
    longest = max((each["ttft_p99_ms"] for each in found.values()), default=0.0) or 1.0
    lines = [f"{'router':13} {'n':>6} {'failed':>6} {'p50 ms':>8} {'p90 ms':>8} {'p99 ms':>8} {'hits':>6} {'cold':>6}"]
    for router, each in found.items():
        lines.append(
            f"{router:13} {each['counted']:6} {each['failed']:6} {each['ttft_p50_ms']:8.0f} {each['ttft_p90_ms']:8.0f}"
            f" {each['ttft_p99_ms']:8.0f} {each['prefix_hit_ratio']:6.3f} {each['cold_ratio']:6.3f}"
            f"  {'#' * max(1, round(_BAR * each['ttft_p99_ms'] / longest))}"
        )
    return "\n".join(lines) + "\n"
