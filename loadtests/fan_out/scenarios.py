"""The table of runs: fleets of several sizes, with faults, and compared with reading from the store alone."""

import argparse
import json
import shutil
import sys
import tempfile
from dataclasses import asdict, replace
from pathlib import Path

from loadtests.fan_out.artifact import publish_random
from loadtests.fan_out.measurement import TOKEN, Plan, Result, measure
from loadtests.fan_out.proxy import StoreProxy
from loadtests.fan_out.report import plot, table
from loadtests.fan_out.store import running_store, store_at
from loadtests.fan_out.tracker import running_tracker

MB, MIB = 1_000_000, 1024 * 1024
FAULTS = ("kill", "corrupt", "store")
SPARE_BYTES = 2 * 1024**3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--size-mb", type=float, default=256)
    parser.add_argument("--chunk-mib", type=int, default=1, help="a power of two from 1 to 64")
    parser.add_argument("--nodes", default="1,2,4,8,16,32")
    parser.add_argument("--alone", default="", help="sizes of fleets that read only from the store, for comparison")
    parser.add_argument(
        "--volume", default="", help="sizes of fleets that read a folder which one node has filled (pvc://)"
    )
    parser.add_argument("--volume-mb-s", type=float, default=0.0, help="the volume's cap (default: the store's)")
    parser.add_argument("--faults", default="", help=f"faults for each fleet of two or more nodes: {','.join(FAULTS)}")
    parser.add_argument("--node-mb-s", type=float, default=8.0, help="each node's cap, down and up")
    parser.add_argument("--store-mb-s", type=float, default=40.0, help="the store's cap")
    parser.add_argument("--zones", type=int, default=1)
    parser.add_argument(
        "--folder", type=Path, default=None, help="folder with enough space (default: a temporary folder)"
    )
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")


def main(arguments: argparse.Namespace) -> int:
    plans = _plans(arguments)
    most = max(plan.nodes for plan in plans)
    with tempfile.TemporaryDirectory(dir=arguments.folder, prefix="fan-out-") as name:
        folder = Path(name)
        needed_bytes = int((most + 2) * plans[0].size_bytes) + SPARE_BYTES
        if shutil.disk_usage(folder).free < needed_bytes:
            print(f"{folder} has less than {needed_bytes / 1e9:.0f} GB free: use another --folder", file=sys.stderr)
            return 1
        results = _run(plans, folder)
    if arguments.output == "json":
        print(json.dumps([asdict(result) | {"store_ratio": result.store_ratio} for result in results], indent=1))
    else:
        print(table(results), plot(results), sep="\n\n")
    return 0


def _run(plans: list[Plan], folder: Path) -> list[Result]:
    results = []
    with running_store(folder / "store") as store_port:
        store = store_at(store_port)
        digest = publish_random(store, folder / "source", plans[0].size_bytes, plans[0].chunk_bytes)
        with StoreProxy(store_port, plans[0].store_rate) as proxy:
            for plan in plans:
                with running_tracker(TOKEN) as tracker_url:  # a new tracker, without nodes of the run before
                    result = measure(plan, digest, folder / "nodes", proxy, tracker_url)
                print(table([result]).splitlines()[-1], file=sys.stderr, flush=True)
                results.append(result)
    return results


def _plans(arguments: argparse.Namespace) -> list[Plan]:
    sizes = [int(text) for text in arguments.nodes.split(",") if text]
    base = Plan(
        "swarm",
        1,
        int(arguments.size_mb * MB),
        arguments.chunk_mib * MIB,
        arguments.node_mb_s * MB,
        arguments.store_mb_s * MB,
        zones=arguments.zones,
    )
    plans = [replace(base, nodes=nodes) for nodes in sizes]
    plans += [
        replace(base, name="store alone", nodes=int(text), swarm=False) for text in arguments.alone.split(",") if text
    ]
    volume_rate = (arguments.volume_mb_s or arguments.store_mb_s) * MB
    plans += [
        replace(base, name="volume", nodes=int(text), swarm=False, volume=True, volume_rate=volume_rate)
        for text in arguments.volume.split(",")
        if text
    ]
    return plans + _with_faults(base, sizes, [name for name in arguments.faults.split(",") if name])


def _with_faults(base: Plan, sizes: list[int], names: list[str]) -> list[Plan]:
    """Return a run of each fault in each fleet of two or more nodes."""
    faults = {
        "kill": replace(base, name="one killed", kill_one=True),
        "corrupt": replace(base, name="one corrupt", corrupt_one=True),
        "store": replace(base, name="store 503 for 10 s", break_store=True),
    }
    return [replace(faults[name], nodes=nodes) for name in names for nodes in sizes if nodes > 1]
