"""The report as a Markdown table: by kind of fault, how often, how fast everything recovered, and what was slow."""

import statistics
from collections.abc import Iterator
from typing import Any


def rows(report: dict[str, Any]) -> Iterator[str]:
    ends = ", ".join(f"{count} {end}" for end, count in report["ends"])
    yield f"{report['minutes']:.1f} minutes, seed {report['seed']}, {report['requests']} requests: {ends}"
    yield "| fault | times | two at once | well again p50 | p99 |"
    yield "|---|---|---|---|---|"
    for kind in sorted({fault["kind"] for fault in report["faults"]}):
        found = [fault for fault in report["faults"] if fault["kind"] == kind and fault["struck"]]
        took_s = sorted(fault["recovery_s"] for fault in found)
        if took_s:
            last = took_s[min(len(took_s) - 1, int(len(took_s) * 0.99))]
            pairs = sum(bool(fault["with"]) for fault in found)
            yield f"| {kind} | {len(found)} | {pairs} | {statistics.median(took_s):.1f} s | {last:.1f} s |"
