"""`python -m loadtests.bench [--rounds N] [-o json]`."""

import argparse
import asyncio
import json
import os
import ssl
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import uvloop
from rich.console import Console
from rich.table import Table

from loadtests.bench.load import Target, closed_loop, hold_streams
from loadtests.bench.processes import Bench, cpu_us, resident_kib, started

_EVENTS = 64
_PROMPT = "Tell me about the sea. " * 40
_SECONDS = 3.0


def _body(stream: bool) -> bytes:
    request = {"model": "acme/bench", "messages": [{"role": "user", "content": _PROMPT}], "stream": stream}
    return json.dumps(request, separators=(",", ":")).encode()


def _targets(bench: Bench) -> dict[str, Target]:
    headers = b"authorization: Bearer %b\r\n" % bench.api_key.encode()
    tls = ssl.create_default_context(cafile=str(bench.ca_file))
    return {
        "direct": Target(bench.engine_port, headers),
        "lane": Target(bench.plain_port, headers),
        "plain": Target(bench.plain_port, headers, warm_path=b"/healthz"),
        "lane, TLS": Target(bench.tls_port, headers, tls=tls),
    }


async def _per_request(bench: Bench, target: Target) -> dict[str, float]:
    before = cpu_us(bench.gateway_pid)
    tally = await closed_loop(target, _body(False), connections=32, seconds=_SECONDS)
    used = cpu_us(bench.gateway_pid) - before
    return {
        "µs/request": used / max(1, tally.requests),
        "requests/s": tally.requests / _SECONDS,
        "failed": tally.failures,
    }


async def _per_event(bench: Bench, target: Target) -> dict[str, float]:
    before = cpu_us(bench.gateway_pid)
    tally = await closed_loop(target, _body(True), connections=100, seconds=_SECONDS)
    used = cpu_us(bench.gateway_pid) - before
    return {"µs/event": used / max(1, tally.events), "events/s": tally.events / _SECONDS, "failed": tally.failures}


async def _round_trip(bench: Bench, target: Target) -> dict[str, float]:
    tally = await closed_loop(target, _body(False), connections=1, seconds=1.5)
    times = sorted(tally.round_trips_us)
    return {"RTT p50 µs": times[len(times) // 2], "RTT p99 µs": times[int(len(times) * 0.99)]}


async def _memory(bench: Bench, target: Target, count: int) -> dict[str, float]:
    before = resident_kib(bench.gateway_pid)
    streams = await hold_streams(target, _body(True), count)
    await asyncio.sleep(1.0)
    after = resident_kib(bench.gateway_pid)
    failed = sum(stream.failed or not stream.events for stream in streams)
    for stream in streams:
        stream.transport.abort()
    await asyncio.sleep(0.5)
    return {"KiB/stream": (after - before) / count, "streams": count, "failed": failed}


def measure(rounds: int, streams: int, report: Callable[[str], None]) -> dict[str, dict[str, list[float]]]:
    """Every row in every round; lists of one figure a round."""
    rows: dict[str, dict[str, list[float]]] = {}
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[-1]})
    with tempfile.TemporaryDirectory() as folder, started(Path(folder), _EVENTS, 10.0) as bench:
        targets = _targets(bench)
        for number in range(rounds):
            for name, target in targets.items():
                report(f"round {number + 1} of {rounds}: {name}")
                for kind in (_per_request, _per_event, _round_trip):
                    for figure, value in uvloop.run(kind(bench, target)).items():
                        rows.setdefault(name, {}).setdefault(figure, []).append(value)
    for name in ("lane", "plain", "lane, TLS"):
        with tempfile.TemporaryDirectory() as folder, started(Path(folder), 10_000, 1000.0) as bench:
            report(f"{streams} open streams: {name}")
            for figure, value in uvloop.run(_memory(bench, _targets(bench)[name], streams)).items():
                rows[name].setdefault(figure, []).append(value)
    return rows


def show(rows: dict[str, dict[str, list[float]]]) -> None:
    table = Table(title="What the gateway costs (CPU of the gateway process; medians, ranges in brackets)")
    figures = ["µs/request", "µs/event", "requests/s", "events/s", "RTT p50 µs", "RTT p99 µs", "KiB/stream", "failed"]
    table.add_column("")
    for figure in figures:
        table.add_column(figure, justify="right")
    for name, row in rows.items():
        table.add_row(name, *(_cell(figure, row.get(figure), direct=name == "direct") for figure in figures))
    Console().print(table)
    lane, plain = rows["lane"], rows["plain"]
    for figure in ("µs/request", "µs/event"):
        ratio = statistics.median(lane[figure]) / statistics.median(plain[figure])
        Console().print(f"lane / plain, {figure}: {ratio:.2f}")


def _cell(figure: str, values: list[float] | None, *, direct: bool) -> str:
    if not values or (direct and figure.startswith("µs/")):
        return "–"
    if figure == "failed":
        return f"{sum(values):.0f}"
    return f"{statistics.median(values):.1f} [{min(values):.1f}–{max(values):.1f}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("-o", "--output", choices=["table", "json"], default="table")
    options = parser.parse_args()
    started_s = time.monotonic()
    console = Console(stderr=True)
    rows = measure(options.rounds, options.streams, lambda line: console.print(f"[dim]{line}[/dim]"))
    if options.output == "json":
        print(json.dumps(rows))
    else:
        show(rows)
        console.print(f"[dim]{time.monotonic() - started_s:.0f} s[/dim]")


if __name__ == "__main__":
    main()
