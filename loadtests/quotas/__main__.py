"""`python -m loadtests.quotas {limit,ledger} [--gateways 4] [--engines 4] [-o json]`.

limit [--seconds 90] [--tokens-per-minute 60000] [--burst-seconds 1] [--factor 3] [--outage]: tokens that one tenant
gets in any minute.
ledger [--requests 10000]: charged tokens against tokens that the engines computed, with clients that leave and engines
that are killed.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from loadtests.quotas import ledger, limit
from loadtests.quotas.fleet import Fleet


def main() -> None:
    options = _options()
    began_s = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - began_s:5.0f} s  {text}", file=sys.stderr, flush=True)

    with tempfile.TemporaryDirectory(prefix="shoal-quotas-") as name:
        of_tenant = limit.limits_of(options.tokens_per_minute, options.burst_seconds)
        limits = of_tenant if options.part == "limit" else ledger.limits_of()
        fleet = Fleet(Path(name), options.gateways, options.engines, limits)
        with fleet.running():
            if options.part == "limit":
                work = limit.run(fleet, options.seconds, options.factor, options.outage, say)
            else:
                work = ledger.run(fleet, options.requests, say)
            row = asyncio.run(work)
    if options.output == "json":
        print(json.dumps(row))
        return
    table = Table("figure", "value", title=f"quotas, {options.part}")
    for figure, value in row.items():
        table.add_row(figure, f"{value:.4f}" if isinstance(value, float) else str(value))
    Console(width=120).print(table)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m loadtests.quotas", description=__doc__)
    parser.add_argument("part", choices=["limit", "ledger"])
    parser.add_argument("--gateways", type=int, default=4)
    parser.add_argument("--engines", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=90.0, help="duration of the load")
    parser.add_argument("--tokens-per-minute", type=int, default=60_000, help="the tenant's limit on output tokens")
    parser.add_argument("--burst-seconds", type=int, default=1, help="the tier's tokenBurstSeconds")
    parser.add_argument("--factor", type=float, default=3.0, help="offered load as a multiple of the tenant's limit")
    parser.add_argument(
        "--outage", action="store_true", help="kill the bus after one third of the run, restore it after two"
    )
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("-o", "--output", choices=["table", "json"], default="table")
    return parser.parse_args()


if __name__ == "__main__":
    main()
