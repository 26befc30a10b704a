"""`python -m loadtests.memory [--requests 1000000] [--rate 500] [--seed 1] [-o json]`.

Runs a complete gateway (intake, quotas, admission queue, routing, prefixes, relay, metrics) in this process, with
engines that answer immediately and a virtual clock of `--rate` requests a second. Prints the memory of the process at
twenty points. Fails if the second half of the run adds more than 5 %: by then every bounded table is full.
"""

import argparse
import gc
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from functions.gateway.http.sink import Headers
from functions.gateway.intake.routes import CHAT
from loadtests.memory.traffic import Traffic
from loadtests.memory.virtual_gateway import VirtualGateway

POINTS = 20
FLAT_RATIO = 1.05
_HEARTBEAT_S = 1.0
_SWEEP_S = 0.25


class Client:
    """A sink that counts statuses and stores nothing else."""

    def __init__(self) -> None:
        self.statuses: dict[int, int] = {}

    def whole(self, status: int, headers: Headers, body: bytes) -> None:
        self.statuses[status] = self.statuses.get(status, 0) + 1

    def begin_stream(self, headers: Headers, first: bytes) -> None:
        self.statuses[200] = self.statuses.get(200, 0) + 1

    def more(self, data: bytes) -> None:
        """Discard the data."""

    def end(self, last: bytes) -> None:
        """Discard the data."""

    def cut(self) -> None:
        """Do nothing: there is no connection to close."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--rate", type=float, default=500.0, help="requests per second of virtual time")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "-o", "--output", choices=["table", "json"], default="table", help="json prints one line per point"
    )
    options = parser.parse_args()
    rows = _run(options)
    half, last = rows[POINTS // 2 - 1]["rss_mb"], rows[-1]["rss_mb"]
    flat = last <= half * FLAT_RATIO
    if options.output == "json":
        print(json.dumps({"flat": flat}))
    else:
        verdict = f"second half: {half:.0f} -> {last:.0f} MB, {'flat' if flat else 'NOT flat'}"
        table = Table(*rows[0], title="memory by requests answered", caption=verdict)
        for row in rows:
            table.add_row(*(f"{value:,.0f}" if isinstance(value, float) else f"{value:,}" for value in row.values()))
        Console(width=150).print(table)
    return 0 if flat else 1


def _run(options: argparse.Namespace) -> list[dict[str, Any]]:
    virtual, traffic, client = VirtualGateway(), Traffic(options.seed), Client()
    gateway = virtual.gateway
    gc.collect()
    gc.freeze()
    step = max(1, options.requests // POINTS)
    per_sweep = max(1, int(options.rate * _SWEEP_S))
    rows: list[dict[str, Any]] = []
    heartbeat_at_s, cpu_s = virtual.now_s + _HEARTBEAT_S, 0.0
    for number in track(range(1, step * POINTS + 1), "sending requests", disable=options.output == "json"):
        headers, body = traffic.request()
        started_s = time.process_time()
        gateway.handle(CHAT, headers, body, client, virtual.now_s)
        cpu_s += time.process_time() - started_s
        if number % per_sweep == 0:
            virtual.pass_on(_SWEEP_S)
            if virtual.now_s >= heartbeat_at_s:
                virtual.heartbeat()
                heartbeat_at_s = virtual.now_s + _HEARTBEAT_S
        if number % step == 0:
            rows.append(_point(number, virtual, traffic, client, 1e6 * cpu_s / number))
            if options.output == "json":
                print(json.dumps(rows[-1]), flush=True)
    return rows


def _point(number: int, virtual: VirtualGateway, traffic: Traffic, client: Client, cpu_us: float) -> dict[str, Any]:
    gateway = virtual.gateway
    return {
        "requests": number,
        "rss_mb": _rss_mb(),
        "answered": client.statuses.get(200, 0),
        "unknown": client.statuses.get(404, 0),
        "other": sum(count for status, count in client.statuses.items() if status not in (200, 404)),
        "sessions": traffic.sessions,
        "names": traffic.names,
        "prefix blocks": len(gateway.services.prefixes),
        "lengths": len(gateway.services.intake.features.lengths),
        "open": len(gateway.services.open_requests),
        "us each": cpu_us,
    }


def _rss_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


if __name__ == "__main__":
    sys.exit(main())
