"""The verdict as a table and as JSON: every threshold with its measured value, and the figures of each entry."""

import json
from collections.abc import Mapping

from loadtests.locust.slo import Measured, Verdict, percentile, sum_of

_LATE_MS = 100


def table(found: list[Verdict], entries: Mapping[str, Measured]) -> str:
    lines = ["", "thresholds"] if found else ["", "no thresholds: the run passes if any request was answered"]
    for each in found:
        bound = f"{'>=' if each.threshold.is_least else '<='} {each.threshold.limit:g}"
        seen = "nothing measured" if each.seen is None else _figure(each.seen)
        lines.append(f"  {'ok    ' if each.kept else 'BROKEN'}  {each.threshold.name:32} {bound:>12}   seen {seen}")
    everything = sum_of(list(entries.values()))
    lines.append(
        f"  {everything.answers} answers, {everything.failures} failures, {everything.refusals} refusals "
        f"({everything.given_up} requests given up), {everything.tokens} tokens in {everything.seconds:.0f} s"
    )
    late = everything.times.get("lag", {})
    if late and percentile(late, 99) > _LATE_MS:
        lines.append(f"  this load generator itself lagged {percentile(late, 99)} ms (p99): times include that")
    broken = [each.threshold.name for each in found if not each.kept]
    lines.append(
        f"  broken: {', '.join(broken)}" if broken else "  all kept" if answered(entries) else "  NO ANSWER AT ALL"
    )
    return "\n".join(lines) + "\n"


def _figure(seen: float) -> str:
    return f"{seen:.0f}" if seen >= 100 else f"{seen:.4g}"


def answered(entries: Mapping[str, Measured]) -> bool:
    return any(each.answers for each in entries.values())


def as_json(found: list[Verdict], entries: Mapping[str, Measured], seed: int) -> str:
    content = {
        "seed": seed,
        "kept": all(each.kept for each in found) and answered(entries),
        "thresholds": [
            {"name": each.threshold.name, "limit": each.threshold.limit, "seen": each.seen, "kept": each.kept}
            for each in found
        ],
        "entries": {name: _entry(each) for name, each in sorted(entries.items())},
    }
    return json.dumps(content, indent=2) + "\n"


def _entry(seen: Measured) -> dict[str, object]:
    counts = {
        "answers": seen.answers, "failures": seen.failures, "refusals": seen.refusals, "given_up": seen.given_up,
        "degraded": seen.degraded, "tokens": seen.tokens, "seconds": round(seen.seconds, 1),
    }  # fmt: skip
    times = {
        f"{quantity}_ms": {f"p{percent}": percentile(times, percent) for percent in (50, 95, 99)} | {"max": max(times)}
        for quantity, times in seen.times.items()
    }
    return counts | times
