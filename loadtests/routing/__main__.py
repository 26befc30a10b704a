"""`python -m loadtests.routing {replay,virtual,decide} [--router A,B] [--minutes M] [--compression C] [-o json]`."""

import argparse
import asyncio
import json
import os
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any, get_args

from functions.decisions.baselines import RouterName
from loadtests.adapters import fleet as fleets
from loadtests.adapters.library import publish_all
from loadtests.fan_out.store import running_store, store_at
from loadtests.routing import decide, live, trace, virtual
from loadtests.routing.report import figures, table

_WARMUP_RATIO = 0.2
_NO_STORE = 9  # a port where nothing listens


def main() -> int:
    arguments = _arguments()
    if arguments.what == "decide":
        sys.stdout.write(decide.table())
        return 0
    asked = _asked(arguments)
    routers: list[RouterName] = arguments.router.split(",")
    found = {}
    for router in routers:
        run = _live if arguments.what == "replay" else _virtual
        found[router] = run(arguments, router, asked)
        sys.stderr.write(table({router: found[router]}))
    if arguments.output == "json":
        sys.stdout.write(json.dumps({"run": vars(arguments), "routers": found}, indent=1) + "\n")
    else:
        sys.stdout.write(table(found))
    return 1 if any(each["failed"] for each in found.values()) else 0


def _asked(arguments: argparse.Namespace) -> list[trace.Asked]:
    seconds = arguments.minutes * 60 * arguments.compression / arguments.slowdown
    if arguments.trace == "lora":
        return trace.lora(seconds, arguments.rate / arguments.compression)
    folder = os.environ.get("SHOAL_TRACES_DIR")
    if not folder:
        sys.exit(f"set SHOAL_TRACES_DIR to the folder that has {trace.MOONCAKE}")
    return [asked for asked in trace.mooncake(Path(folder)) if asked.at_s < seconds]


def _virtual(arguments: argparse.Namespace, router: RouterName, asked: list[trace.Asked]) -> dict[str, Any]:
    shape = virtual.Shape(arguments.replicas, arguments.kv_tokens)
    samples = virtual.Replay(router, shape).run(asked, arguments.compression)
    return figures(samples, arguments.minutes * 60 * _WARMUP_RATIO)


def _live(arguments: argparse.Namespace, router: RouterName, asked: list[trace.Asked]) -> dict[str, Any]:
    engines = live.Engines(replicas=arguments.replicas, kv_tokens=arguments.kv_tokens, slowdown=arguments.slowdown)
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder, s3_port, digests = Path(name), _NO_STORE, []
        if arguments.trace == "lora":
            s3_port = stack.enter_context(running_store(folder / "s3"))
            store = store_at(s3_port)
            digests = publish_all(store, folder / "sources", trace.ADAPTERS)
            store.close()
        shape = live.shape_of(engines, router)
        fleet = stack.enter_context(fleets.running(folder, shape, digests, s3_port))
        sys.stderr.write(f"{router}: {shape.replicas} replicas are ready\n")
        samples = asyncio.run(
            live.replay(fleet.url, fleet.api_key, asked, arguments.compression / arguments.slowdown, _tell)
        )
        return figures(samples, arguments.minutes * 60 * _WARMUP_RATIO)


def _tell(text: str) -> None:
    sys.stderr.write(f"\r{text} ")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m loadtests.routing", description=__doc__)
    parser.add_argument("what", choices=("replay", "virtual", "decide"))
    parser.add_argument("--trace", choices=("mooncake", "lora"), default="mooncake")
    parser.add_argument("--router", default=",".join(get_args(RouterName)), help="one or several, by commas")
    parser.add_argument("--minutes", type=float, default=10.0, help="of real (or virtual) time a router")
    parser.add_argument(
        "--compression", type=float, default=3.0, help="of the trace's time; 3 loads 8 engines to 80 %%"
    )
    parser.add_argument("--rate", type=float, default=12.0, help="requests a second of the lora mix")
    parser.add_argument("--replicas", type=int, default=8)
    parser.add_argument("--kv-tokens", type=int, default=1_000_000, help="of a replica's cache")
    parser.add_argument("--slowdown", type=float, default=1.0, help="of engines and trace alike, for a busy machine")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
