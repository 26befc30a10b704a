"""`python -m loadtests.routing {replay,virtual,capacity,decide} [--trace mooncake,lora] [-o json] [--plot FILE]`.

capacity   the engines' maximum of requests a second answered in time, with least-loaded routing, in virtual time
virtual    the routers at a share of that capacity, in virtual time: the same figures each time
replay     the same with processes: one fleet per router, --at-once of them concurrently; each round runs all routers
decide     CPU time of one decision
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args

from loadtests.adapters import fleet as fleets
from loadtests.adapters.library import publish_all
from loadtests.fan_out.store import running_store, store_at
from loadtests.routing import capacity, decide, live, picture, trace, virtual
from loadtests.routing.report import figures, table
from studies.routers.live import LiveRouterName

_WARMUP_RATIO = 0.2
_NO_STORE = 9  # a port where nothing listens
TraceName = Literal["mooncake", "lora"]
_RATES_PER_S = {"mooncake": (6.0, 8.0, 10.0, 12.0, 16.0), "lora": (60.0, 80.0, 100.0, 120.0, 150.0)}
_LORA_COMPRESSION = 3.0  # a pause of 10 s between turns becomes 3.3 s


@dataclass(frozen=True, slots=True)
class Plan:
    """One trace at one load."""

    name: TraceName
    asked: list[trace.TraceRequest]  # with times of the trace
    compression: float  # divisor of the trace's times
    seconds: float  # in the trace's time
    note: str


def main() -> int:
    arguments = _arguments()
    if arguments.what == "decide":
        sys.stdout.write(decide.table())
        return 0
    names: list[TraceName] = arguments.trace.split(",")
    if arguments.what == "capacity":
        for name in names:
            sys.stdout.write(f"{name}\n{capacity.table(_sweep(name, _shape(arguments)))}")
        return 0
    run = _live if arguments.what == "replay" else _virtual
    done = []
    for name in names:
        plan = _plan(arguments, name)
        sys.stderr.write(plan.note + "\n")
        for turn in range(arguments.rounds):
            found = run(arguments, plan)
            done.append((f"{name}, round {turn + 1}" if arguments.rounds > 1 else name, plan.note, found))
            sys.stderr.write(table(found))
    _report(arguments, done)
    return 1 if any(each["failed"] for _, _, found in done for each in found.values()) else 0


def _report(arguments: argparse.Namespace, done: list[tuple[str, str, dict[LiveRouterName, dict[str, Any]]]]) -> None:
    if arguments.output == "json":
        runs = [{"run": title, "load": note, "routers": found} for title, note, found in done]
        sys.stdout.write(json.dumps({"arguments": vars(arguments), "runs": runs}, indent=1) + "\n")
    else:
        sys.stdout.write("\n".join(f"{title}: {note}\n{table(found)}" for title, note, found in done))
    if arguments.plot:
        Path(arguments.plot).write_text(picture.svg([(title, found) for title, _, found in done]))


def _plan(arguments: argparse.Namespace, name: TraceName) -> Plan:
    most_per_s = arguments.capacity or capacity.capacity_per_s(_sweep(name, _shape(arguments)))
    rate_per_s, seconds = arguments.load * most_per_s, arguments.minutes * 60
    if name == "mooncake":
        compression = rate_per_s / trace.MOONCAKE_PER_S
        asked = [each for each in _mooncake() if each.at_s < seconds]
    else:
        compression = _LORA_COMPRESSION
        asked = trace.lora(seconds, rate_per_s / compression)
    note = (
        f"{arguments.minutes:g} minutes of the trace, {compression:.2f} times as fast: {rate_per_s:.1f} requests a"
        f" second are {arguments.load:.0%} of the {most_per_s:.1f} that least-loaded serves in time at most"
    )
    if arguments.what == "replay":
        note += f"; engines, adapters' loads and arrivals {arguments.slowdown:g} times as slow"
    return Plan(name, asked, compression, seconds, note)


def _sweep(name: TraceName, shape: virtual.Shape) -> list[capacity.Point]:
    def requests_at(rate_per_s: float, seconds: float) -> list[trace.TraceRequest]:
        if name == "lora":
            return _faster(trace.lora(seconds * _LORA_COMPRESSION, rate_per_s / _LORA_COMPRESSION), _LORA_COMPRESSION)
        return [each for each in _faster(_mooncake(), rate_per_s / trace.MOONCAKE_PER_S) if each.at_s < seconds]

    return capacity.sweep(requests_at, _RATES_PER_S[name], shape)


def _faster(asked: list[trace.TraceRequest], compression: float) -> list[trace.TraceRequest]:
    return [replace(each, at_s=each.at_s / compression) for each in asked]


@cache
def _mooncake() -> list[trace.TraceRequest]:
    folder = os.environ.get("SHOAL_TRACES_DIR")
    if not folder:
        sys.exit(f"set SHOAL_TRACES_DIR to the folder that has {trace.MOONCAKE}")
    return trace.mooncake(Path(folder))


def _shape(arguments: argparse.Namespace) -> virtual.Shape:
    return virtual.Shape(arguments.replicas, arguments.kv_tokens)


def _virtual(arguments: argparse.Namespace, plan: Plan) -> dict[LiveRouterName, dict[str, Any]]:
    found: dict[LiveRouterName, dict[str, Any]] = {}
    for router in _routers(arguments):
        replay = virtual.Replay(router, _shape(arguments))
        samples = replay.run(plan.asked, plan.compression)
        found[router] = figures(samples, plan.seconds / plan.compression * _WARMUP_RATIO)
    return found


def _live(arguments: argparse.Namespace, plan: Plan) -> dict[LiveRouterName, dict[str, Any]]:
    found: dict[LiveRouterName, dict[str, Any]] = {}
    routers = _routers(arguments)
    for at in range(0, len(routers), arguments.at_once):
        found |= _together(arguments, plan, routers[at : at + arguments.at_once])
        sys.stderr.write(table(found))
    return found


def _together(
    arguments: argparse.Namespace, plan: Plan, routers: list[LiveRouterName]
) -> dict[LiveRouterName, dict[str, Any]]:
    engines = live.Engines(replicas=arguments.replicas, kv_tokens=arguments.kv_tokens, slowdown=arguments.slowdown)
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder, s3_port, digests = Path(name), _NO_STORE, []
        if plan.name == "lora":
            s3_port = stack.enter_context(running_store(folder / "s3"))
            store = store_at(s3_port)
            digests = publish_all(store, folder / "sources", trace.ADAPTERS)
            store.close()
        running: dict[LiveRouterName, fleets.Fleet] = {}
        for router in routers:
            (folder / router).mkdir()
            shape = live.shape_of(engines, router)
            running[router] = stack.enter_context(fleets.running(folder / router, shape, digests, s3_port))
            sys.stderr.write(f"{router}: {shape.replicas} replicas are ready\n")
        speed = plan.compression / arguments.slowdown
        samples = asyncio.run(_replay_all(running, plan.asked, speed))
        return {router: figures(each, plan.seconds / speed * _WARMUP_RATIO) for router, each in samples.items()}


async def _replay_all(
    running: dict[LiveRouterName, fleets.Fleet], asked: list[trace.TraceRequest], speed: float
) -> dict[LiveRouterName, list[live.Sample]]:
    def tell_of(router: LiveRouterName) -> Callable[[str], None]:
        def write_progress(text: str) -> None:
            sys.stderr.write(f"{router}: {text}\n")

        return write_progress

    async with asyncio.TaskGroup() as group:
        tasks = {
            router: group.create_task(live.replay(fleet.url, fleet.api_key, asked, speed, tell_of(router)))
            for router, fleet in running.items()
        }
    return {router: task.result() for router, task in tasks.items()}


def _routers(arguments: argparse.Namespace) -> list[LiveRouterName]:
    return list(arguments.router.split(","))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.routing", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("replay", "virtual", "capacity", "decide"))
    parser.add_argument("--trace", default="mooncake,lora", help="traces, comma-separated")
    parser.add_argument("--router", default=",".join(get_args(LiveRouterName)), help="routers, comma-separated")
    parser.add_argument("--minutes", type=float, default=10.0, help="minutes of the trace's own time")
    parser.add_argument("--load", type=float, default=0.8, help="share of the capacity that is offered")
    parser.add_argument("--capacity", type=float, help="requests a second (default: measured first, a minute)")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--replicas", type=int, default=8)
    parser.add_argument("--kv-tokens", type=int, default=1_000_000, help="size of a replica's KV cache")
    parser.add_argument("--at-once", type=int, default=1, help="concurrent fleets, of 17 processes each")
    parser.add_argument(
        "--slowdown", type=float, default=1.0, help="factor on times of engines and arrivals, in replay"
    )
    parser.add_argument("--plot", help="SVG file for a picture of the result")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
