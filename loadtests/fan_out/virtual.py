"""Fan-outs in virtual time, for comparison with measured ones and for sizes that one machine cannot run."""

import argparse
import json
import sys
import time
from dataclasses import asdict, replace

from studies.fan_out.assumptions import Assumptions, Outcome
from studies.fan_out.simulation import simulate

MB, GB, MIB = 1_000_000, 1_000_000_000, 1024 * 1024
HASH_BYTES_PER_S = 1.2e9
_HEAD = ("run", "nodes", "GB", "chunk MiB", "MB/s", "slowest s", "median s", "least s", "hash s", "store x", "took s")

TAKEN_FOR_GRANTED = """\
Assumptions: every node has the same link up and down, and no switch between two nodes is narrower. Disks and CPUs keep
up, no packet is lost, nodes start within 0.5 s. Latency is {latency_ms:.0f} ms one way and {store_ms:.0f} ms until the
store's first byte. There is one tracker. The decisions are the real ones. Hashing the artifact at the end (1.2 GB/s,
one core) is not included: it takes the same time on every node and has its own column."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--size-gb", type=float, default=140.0)
    parser.add_argument("--chunk-mib", type=int, default=256, help="coarser than the real 32 at 140 GB: fewer events")
    parser.add_argument("--nodes", default="1,10,100,1000")
    parser.add_argument("--node-mb-s", type=float, default=1250.0, help="each node's link: 10 Gbit/s")
    parser.add_argument("--store-mb-s", type=float, default=5000.0, help="the store's link for all nodes: 40 Gbit/s")
    parser.add_argument("--zones", type=int, default=1)
    parser.add_argument("--alone", action="store_true", help="also run each fleet from the store alone")
    parser.add_argument(
        "--faults", action="store_true", help="also run the largest fleet with each fault: kill, corrupt, 503"
    )
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")


def main(arguments: argparse.Namespace) -> int:
    sizes = [int(text) for text in arguments.nodes.split(",") if text]
    base = Assumptions(
        nodes=1,
        size_bytes=int(arguments.size_gb * GB),
        chunk_bytes=arguments.chunk_mib * MIB,
        down_bytes_per_s=arguments.node_mb_s * MB,
        up_bytes_per_s=arguments.node_mb_s * MB,
        store_bytes_per_s=arguments.store_mb_s * MB,
        zones=arguments.zones,
        hash_bytes_per_s=float("inf"),
    )
    runs = [("swarm", replace(base, nodes=nodes)) for nodes in sizes]
    if arguments.alone:
        runs += [("store alone", replace(base, nodes=nodes, swarm=False)) for nodes in sizes]
    if arguments.faults:
        most = replace(base, nodes=max(sizes))
        middle_s = most.least_s / 3
        runs.append(("one killed", replace(most, killed=((0, middle_s),))))
        runs.append(("one corrupt", replace(most, corrupt=frozenset({most.nodes - 1}))))
        runs.append(("store 503 for 10 s", replace(most, store_down=(middle_s / 3, middle_s / 3 + 10.0))))
    rows: list[tuple[str, ...]] = [_HEAD]
    documents = []
    for name, assumptions in runs:
        began_s = time.monotonic()
        outcome = simulate(assumptions)
        took_s = time.monotonic() - began_s
        rows.append(_row(name, assumptions, outcome, took_s))
        documents.append(_document(name, assumptions, outcome))
        print("  ".join(rows[-1]), file=sys.stderr, flush=True)
    if arguments.output == "json":
        print(json.dumps(documents, indent=1))
        return 0
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
    for row in rows:
        print("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)))
    print(TAKEN_FOR_GRANTED.format(latency_ms=base.latency_s * 1000, store_ms=base.store_latency_s * 1000))
    return 0


def _row(name: str, assumptions: Assumptions, outcome: Outcome, took_s: float) -> tuple[str, ...]:
    return (
        name,
        str(assumptions.nodes),
        f"{assumptions.size_bytes / GB:g}",
        f"{assumptions.chunk_bytes / MIB:g}",
        f"{assumptions.down_bytes_per_s / MB:g}",
        f"{outcome.slowest_s:.1f}",
        f"{outcome.median_s:.1f}",
        f"{assumptions.least_s:.1f}",
        f"{assumptions.size_bytes / HASH_BYTES_PER_S:.1f}",
        f"{outcome.store_bytes / assumptions.size_bytes:.2f}",
        f"{took_s:.1f}",
    )


def _document(name: str, assumptions: Assumptions, outcome: Outcome) -> dict[str, object]:
    given = asdict(assumptions) | {"corrupt": sorted(assumptions.corrupt), "least_s": assumptions.least_s}
    del given["hash_bytes_per_s"]  # infinity does not exist in JSON
    return {"run": name, "assumptions": given, "slowest_s": outcome.slowest_s, "median_s": outcome.median_s} | {
        "store_ratio": outcome.store_bytes / assumptions.size_bytes,
        "failures": outcome.failures,
        "announcements": outcome.announcements,
    }
