"""Figures of a run, as JSON or as a table."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from loadtests.adapters.fleet import Fleet, Shape
from loadtests.adapters.traffic import Sample
from loadtests.popularity import Popularity

_QUANTILES = (0.5, 0.9, 0.99)


def figures(
    samples: Sequence[Sample],
    warmup_s: float,
    loads: Mapping[str, Counter[str]],
    fleet: Fleet,
    shape: Shape,
    popularity: Popularity,
) -> dict[str, Any]:
    """Return ratios and times of the samples after the warm-up, and failures and fetches of the whole run."""
    counted = [sample for sample in samples if sample.at_s >= warmup_s]
    good = [sample for sample in counted if sample.good]
    cold = [sample for sample in good if sample.load_ms is not None]
    warm = [sample for sample in good if sample.load_ms is None]
    fetches = fleet.fetches()
    return {
        "requests": len(samples),
        "counted": len(counted),
        "failed": sum(not sample.good for sample in samples),
        "failures": dict(
            Counter(f"{each.status} {each.code[:160]}" for each in samples if not each.good).most_common(6)
        ),
        "ratio_warm": _ratio(len(warm), len(good)),
        "ratio_warm_at_best": round(popularity.share_of_top(shape.replicas * shape.places), 3),
        "loads": {tier: count for tier, count in loads["loads"].items() if count},
        "ratio_cold_from_disk": _ratio(loads["loads"]["disk"], loads["loads"]["disk"] + loads["loads"]["s3"]),
        "cold_answers": {answer: count for answer, count in loads["answers"].items() if count},
        "engine_requests_by_tier": dict(loads["requests"]),
        "warm_ttft_ms": _quantiles([sample.ttft_ms for sample in warm]),
        "cold_ttft_ms": _quantiles([sample.ttft_ms for sample in cold]),
        "cold_wait_ms": _quantiles([sample.load_ms or 0.0 for sample in cold]),
        "fetches": fetches.total(),
        "most_fetches_of_a_digest_on_a_node": max(fetches.values(), default=0),
    }


def table(found: Mapping[str, Any]) -> str:
    return "".join(f"{name.replace('_', ' '):38} {_text(value)}\n" for name, value in found.items())


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name}: {part}" for name, part in value.items()) or "-"
    return str(value)


def _ratio(part: int, whole: int) -> float | None:
    return round(part / whole, 3) if whole else None


def _quantiles(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    found = {f"p{round(q * 100)}": round(ordered[min(len(ordered) - 1, int(q * len(ordered)))], 1) for q in _QUANTILES}
    return {"n": len(ordered)} | found if ordered else {"n": 0}
