"""`python -m loadtests.adapters [--adapters N] [--replicas N] [--rate R] [--seconds S] [-o json]`."""

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from pathlib import Path

from loadtests.adapters import fleet as fleets
from loadtests.adapters.figures import figures, table
from loadtests.adapters.fleet import Shape
from loadtests.adapters.library import publish_all
from loadtests.adapters.traffic import offer
from loadtests.fan_out.store import running_store, store_at
from loadtests.popularity import Popularity


def main() -> int:
    arguments = _arguments()
    shape = Shape(
        replicas=arguments.replicas,
        nodes=min(arguments.nodes, arguments.replicas),
        slots=arguments.slots,
        places=arguments.places,
        cache_max_bytes=arguments.cache_mb * 2**20,
        engine=arguments.engine,
        engine_python=arguments.engine_python,
        model_dir=arguments.model_dir,
        adapter_load_ms=arguments.adapter_load_ms,
    )
    popularity = Popularity(arguments.adapters, arguments.zipf, random.Random(arguments.seed))
    with tempfile.TemporaryDirectory() as name, running_store(Path(name) / "s3") as s3_port:
        folder = Path(name)
        began_s = time.monotonic()
        store = store_at(s3_port)
        digests = publish_all(store, folder / "sources", arguments.adapters)
        store.close()
        _say(f"{len(digests)} adapters published in {time.monotonic() - began_s:.0f} s")
        with fleets.running(folder, shape, digests, s3_port) as fleet:
            _say(f"{shape.replicas} replicas are ready; {arguments.rate:g} requests a second")
            before = fleet.loads_by_tier(), fleet.answers(), fleet.requests_by_tier()
            samples = asyncio.run(
                offer(fleet.url, fleet.api_key, popularity, arguments.rate, arguments.seconds, _progress)
            )
            after = fleet.loads_by_tier(), fleet.answers(), fleet.requests_by_tier()
            loads = {
                kind: new - old for kind, old, new in zip(("loads", "answers", "requests"), before, after, strict=True)
            }
            found = figures(samples, arguments.warmup, loads, fleet, shape, popularity)
    found = {"run": vars(arguments)} | found
    sys.stdout.write(json.dumps(found, indent=1) + "\n" if arguments.output == "json" else table(found))
    all_cached = arguments.adapters < arguments.cache_mb
    herd = all_cached and found["most_fetches_of_a_digest_on_a_node"] > 1
    return 1 if found["failed"] or herd else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m loadtests.adapters", description=__doc__)
    parser.add_argument("--adapters", type=int, default=2000)
    parser.add_argument("--replicas", type=int, default=8)
    parser.add_argument("--nodes", type=int, default=2, help="number of nodes; replicas of one node share a disk cache")
    parser.add_argument("--slots", type=int, default=8, help="the engines' --max-loras")
    parser.add_argument("--places", type=int, default=64, help="the engines' --max-cpu-loras")
    parser.add_argument("--cache-mb", type=int, default=4096, help="size of each node's disk cache in MiB")
    parser.add_argument("--zipf", type=float, default=1.0, help="exponent of Zipf's law")
    parser.add_argument("--rate", type=float, default=40.0, help="requests a second")
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument(
        "--warmup", type=float, default=30.0, help="seconds at the start that ratios and times leave out"
    )
    parser.add_argument(
        "--adapter-load-ms", type=float, default=20.0, help="a simulated engine's time to load an adapter"
    )
    parser.add_argument("--seed", type=int, default=4)
    parser.add_argument("--engine", choices=("sim", "vllm"), default="sim")
    parser.add_argument("--engine-python", default=sys.executable, help="Python of the environment that has vLLM")
    parser.add_argument("--model-dir", default="no-model", help="the base model's folder, for vLLM")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    return parser.parse_args()


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")


def _progress(answered: int) -> None:
    if answered and answered % 500 == 0:
        sys.stderr.write(f"\r{answered} answered ")


if __name__ == "__main__":
    sys.exit(main())
