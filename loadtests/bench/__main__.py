"""`make bench`, or `python -m loadtests.bench [--parts …] [--contenders …] [--rounds N]`; `--help` lists them."""

import argparse
import json
import os
import platform
import random
import time
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from loadtests.bench.contenders import CONTENDERS
from loadtests.bench.figures import Sample, by_figure
from loadtests.bench.parts import PARTS
from loadtests.bench.peers import HOME
from loadtests.bench.picture import svg
from loadtests.bench.report import show
from loadtests.bench.run import Plan, measure

_OPTIONAL = ("shoal, plain ASGI", "shoal, 2 processes", "shoal, rows to files")


def main() -> None:
    options = _options()
    console = Console(stderr=True)
    began_s = time.monotonic()
    seed = options.seed if options.seed is not None else random.randrange(10**6)
    plan = Plan(options.parts, options.contenders, options.rounds, options.streams, options.replicas, seed)
    if options.show:
        subtitle, samples = f"{options.show}, shown again", _read(options.show)
    else:
        subtitle, samples = _setting(plan), measure(plan, console)
        HOME.mkdir(exist_ok=True)
        _write(HOME / "last.json", samples)
    grouped = by_figure(samples)
    names = [name for name in CONTENDERS if any(sample.contender == name for sample in samples)]
    out = Console(width=max(Console().width, 40 + 34 * len(names)) if not Console().is_terminal else None)
    show(grouped, names, out)
    options.picture.parent.mkdir(parents=True, exist_ok=True)
    options.picture.write_text(svg(grouped, names, subtitle))
    console.print(f"[dim]{subtitle}; {time.monotonic() - began_s:.0f} s; picture: {options.picture}[/dim]")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m loadtests.bench")
    usual = [name for name in CONTENDERS if name not in _OPTIONAL]
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART", help=", ".join(PARTS))
    parser.add_argument(
        "--contenders", nargs="+", choices=CONTENDERS, default=usual, metavar="NAME", help="; ".join(CONTENDERS)
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--streams", type=int, default=9_500, help="streams held open together; fewer if descriptors are few"
    )
    parser.add_argument("--replicas", type=int, default=32)
    parser.add_argument("--seed", type=int, help="seed of the contenders' order (default: random)")
    parser.add_argument("--show", type=Path, help="show a former run's figures (.bench/last.json) instead of a new run")
    parser.add_argument("--picture", type=Path, default=HOME / "bench.svg")
    return parser.parse_args()


def _setting(plan: Plan) -> str:
    """Return date, machine and plan. The load average is taken before the run adds its own load."""
    return (
        f"{time.strftime('%Y-%m-%d')}, {_machine()}, load average {os.getloadavg()[0]:.1f}; {plan.replicas} replicas, "
        f"{plan.rounds} rounds, {plan.streams:,} open streams at most"
    )


def _machine() -> str:
    models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    model = models[0].split(":", 1)[1].strip() if models else platform.machine()
    return f"{len(models) or 1} × {model}"


def _write(path: Path, samples: list[Sample]) -> None:
    path.write_text(json.dumps([asdict(sample) for sample in samples]))


def _read(path: Path) -> list[Sample]:
    return [Sample(**sample) for sample in json.loads(path.read_text())]


if __name__ == "__main__":
    main()
