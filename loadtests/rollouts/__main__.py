"""`python -m loadtests.rollouts [--count 200] [--seconds 120] [--rate 60] [-o json]`.

Identical versions first: at most the configured share (falseAlarmRate) may be halted. Then bad versions: the stage and
the time of each rollback, and the number of requests that the bad version served.
"""

import argparse
import json
import random
import statistics
from dataclasses import replace

from rich.console import Console
from rich.table import Table

from loadtests.rollouts.virtual import Behaviour, Outcome, VirtualRollout, policy

SAME = Behaviour()
VERSIONS = {
    "identical": SAME,
    "identical, at the limit (2 % errors)": replace(SAME, error_ratio=0.02),
    "5 % errors": replace(SAME, error_ratio=0.05),
    "30 % errors": replace(SAME, error_ratio=0.3),
    "dead": replace(SAME, error_ratio=1.0),
    "2x slower": replace(SAME, slower=2.0),
    "3x slower": replace(SAME, slower=3.0),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--count", type=int, default=200, help="rollouts of each identical version; the others get a tenth"
    )
    parser.add_argument("--seconds", type=float, default=120.0, help="duration of each stage")
    parser.add_argument("--rate", type=float, default=60.0, help="requests a second")
    parser.add_argument("-o", "--output", choices=["table", "json"], default="table")
    options = parser.parse_args()
    rows = [_row(name, candidate, options) for name, candidate in VERSIONS.items()]
    if options.output == "json":
        print(json.dumps(rows))
        return
    table = Table(*rows[0], title=f"{options.seconds:g} s a stage, {options.rate:g} requests/s, falseAlarmRate 1 %")
    for row in rows:
        table.add_row(*(f"{value:.4g}" if isinstance(value, float) else str(value) for value in row.values()))
    Console(width=150).print(table)


def _row(name: str, candidate: Behaviour, options: argparse.Namespace) -> dict[str, object]:
    is_same = name.startswith("identical")
    control = candidate if is_same else SAME
    count = options.count if is_same else max(10, options.count // 10)
    outcomes = [_rollout(seed, control, candidate, options) for seed in range(count)]
    halted = [outcome for outcome in outcomes if outcome.state == "rolled_back"]
    held = [outcome for outcome in outcomes if outcome.state == "running"]
    return {
        "version": name,
        "rollouts": count,
        "completed": sum(outcome.state == "completed" for outcome in outcomes),
        "held": len(held),
        "halted": len(halted),
        "in stage (median)": _median([outcome.stage + 1 for outcome in halted]),
        "seconds (median)": _median([outcome.seconds for outcome in halted]),
        "saw it (median)": _median([outcome.saw_it for outcome in halted]),
        "of requests": _median([outcome.requests for outcome in halted]),
    }


def _rollout(seed: int, control: Behaviour, candidate: Behaviour, options: argparse.Namespace) -> Outcome:
    rollout = VirtualRollout(random.Random(seed), policy(options.seconds), control, candidate, options.rate)
    return rollout.run(at_most_s=6 * options.seconds)


def _median(values: list[float] | list[int]) -> float | str:
    return float(statistics.median(values)) if values else "-"


if __name__ == "__main__":
    main()
