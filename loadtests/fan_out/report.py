"""Results as a table, and as a text plot of time against log2 of the number of nodes."""

import math

from loadtests.fan_out.measurement import Result

_HEAD = (
    "run",
    "nodes",
    "MB",
    "chunk MiB",
    "node MB/s",
    "slowest s",
    "median s",
    "least s",
    "store x",
    "rate MB/s",
    "CPU s",
    "failures",
)
_BAR = 50


def table(results: list[Result]) -> str:
    """Return one line per run. `least` is the lower bound by the caps, `store x` the store's bytes over the artifact's
    size, and `rate` the MB/s received by all nodes together."""
    rows = [_HEAD, *(_row(result) for result in results)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)


def plot(results: list[Result]) -> str:
    """Return one bar per run. If nodes double from bar to bar, a straight line of ends means growth with log2 N."""
    longest_s = max(result.slowest_s for result in results)
    return "\n".join(
        f"{result.plan.name:>12} log2 N = {math.log2(result.plan.nodes):4.1f}  "
        f"{'#' * max(1, round(_BAR * result.slowest_s / longest_s))} {result.slowest_s:.1f} s"
        for result in results
    )


def _row(result: Result) -> tuple[str, ...]:
    plan = result.plan
    return (
        plan.name,
        str(plan.nodes),
        f"{plan.size_bytes / 1e6:.0f}",
        f"{plan.chunk_bytes / 2**20:.0f}",
        f"{plan.node_rate / 1e6:.0f}",
        f"{result.slowest_s:.1f}",
        f"{result.median_s:.1f}",
        f"{plan.least_s:.1f}",
        f"{result.store_ratio:.2f}",
        f"{result.rate / 1e6:.1f}",
        f"{result.cpu_s:.0f}",
        " ".join(f"{name}:{count}" for name, count in sorted(result.failures.items())) or "-",
    )
