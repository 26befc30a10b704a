"""Run many seeds, or a single one in detail.

python -m tests.drills.virtual --seeds 1000          all of 0..999; exit 1 if one breaks an invariant
python -m tests.drills.virtual --seed 417 -v         a single one, with its log
python -m tests.drills.virtual --seeds 1000 -o json  the same for machines, one line a seed
"""

import argparse
import json
import logging
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from tests.drills.virtual import usage_seen
from tests.drills.virtual.seed import Verdict, run_seed, workplace

_SAID_EVERY_S = 10.0


@dataclass
class Tally:
    """Totals of many seeds."""

    seeds: int = 0
    broken: list[int] = field(default_factory=list)
    endings: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    usage: Counter[str] = field(default_factory=Counter)
    virtual_s: float = 0.0
    wall_s: float = 0.0

    def add(self, verdict: Verdict) -> None:
        self.seeds += 1
        self.endings.update(verdict.endings)
        self.faults.update(verdict.faults)
        self.usage.update(verdict.usage)
        self.virtual_s += verdict.virtual_s
        self.wall_s += verdict.wall_s
        if verdict.breaches:
            self.broken.append(verdict.seed)

    def __str__(self) -> str:
        speed = self.virtual_s / max(self.wall_s, 1e-9)
        verdict = f"broken: {self.broken}" if self.broken else "every invariant held"
        return (
            f"{self.seeds} seeds, {self.virtual_s:.0f} virtual seconds in {self.wall_s:.1f} s ({speed:.0f} a second)\n"
            f"requests: {sum(self.endings.values())}, {dict(self.endings.most_common())}\n"
            f"faults: {sum(self.faults.values())}, {dict(self.faults.most_common())}\n"
            f"usage: {dict(sorted(self.usage.items()))}\n" + "\n".join((*usage_seen.lines(self.usage), verdict))
        )


def main() -> int:
    if os.environ.get("PYTHONHASHSEED") != "0":  # sets of names are iterated in hash order
        again = [sys.executable, "-m", "tests.drills.virtual", *sys.argv[1:]]
        os.execve(sys.executable, again, {**os.environ, "PYTHONHASHSEED": "0"})
    parser = argparse.ArgumentParser(prog="python -m tests.drills.virtual", description="Seeds of faults.")
    parser.add_argument("--seed", type=int, help="this one alone")
    parser.add_argument("--seeds", type=int, default=100, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("-v", "--verbose", action="store_true", help="print the log")
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text")
    asked = parser.parse_args()
    logging.lastResort = None
    seeds = [asked.seed] if asked.seed is not None else range(asked.first, asked.first + asked.seeds)
    with workplace() as place:
        tally = _run(seeds, place, verbose=asked.verbose, as_json=asked.output == "json")
    if asked.output == "text":
        print(tally)
    return 1 if tally.broken else 0


def _run(seeds: Iterable[int], place: Path, *, verbose: bool, as_json: bool) -> Tally:
    tally, said_s = Tally(), time.monotonic()
    for seed in seeds:
        verdict = run_seed(seed, place)
        tally.add(verdict)
        if as_json:
            print(json.dumps(_line(verdict)), flush=True)
        else:
            _print_verdict(verdict, verbose)
        if time.monotonic() - said_s > _SAID_EVERY_S:
            said_s = time.monotonic()
            print(f"{tally.seeds} seeds done, {len(tally.broken)} broken", file=sys.stderr, flush=True)
    return tally


def _line(verdict: Verdict) -> dict[str, object]:
    return {
        "seed": verdict.seed,
        "breaches": verdict.breaches,
        "faults": verdict.faults,
        "endings": verdict.endings,
        "usage": verdict.usage,
        "hash": verdict.hash,
        "wall_s": round(verdict.wall_s, 3),
    }


def _print_verdict(verdict: Verdict, verbose: bool) -> None:
    if verbose:
        print("\n".join(verdict.log))
    if verdict.breaches or verbose:
        print(f"seed {verdict.seed} ({', '.join(verdict.faults)}), {verdict.wall_s:.1f} s, {verdict.hash[:16]}")
        for breach in verdict.breaches[:20]:
            print(f"    {breach}")
        sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
