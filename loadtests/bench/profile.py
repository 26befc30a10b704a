"""A flame graph of the gateway's CPU time: `python -m loadtests.bench.profile [PART] [-o FILE.svg]`.

py-spy samples the stacks, native frames included, while one of the bench's parts runs against an unmodified gateway.
Widths are shares of the samples. `--stages` prints a table of the stages of a request instead (`stages`).
"""

import argparse
import subprocess
import tempfile
from pathlib import Path

import uvloop
from rich.console import Console
from rich.table import Table

from loadtests.bench.gateway import backdrop, gateway
from loadtests.bench.load import Target
from loadtests.bench.parts import PARTS, Rig
from loadtests.bench.peers import HOME, bin_of
from loadtests.bench.processes import pin, raise_descriptor_limit
from loadtests.bench.stages import shares

_RATE_HZ = 400
_RUNS = 3
_SECONDS = 9  # about _RUNS times a part's 3.2 s


async def _repeated(part: str, rig: Rig) -> None:
    for _ in range(_RUNS):
        figures = await PARTS[part].measure(rig)
        print("  ".join(f"{name} {value:,.1f}" for name, value in figures.items()))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m loadtests.bench.profile")
    parser.add_argument("part", nargs="?", choices=PARTS, default="request-1k")
    parser.add_argument("-o", "--output", type=Path, default=HOME / "profile.svg")
    parser.add_argument("--replicas", type=int, default=32)
    parser.add_argument("--format", choices=["flamegraph", "raw", "speedscope"], default="flamegraph")
    parser.add_argument("--stages", action="store_true", help="a table by stage instead of a picture")
    options = parser.parse_args()
    if options.stages:
        options.format = "raw"
    py_spy = bin_of("py-spy", Console(stderr=True)) / "py-spy"
    pin(0, 1)
    raise_descriptor_limit()
    with (
        tempfile.TemporaryDirectory() as folder,
        backdrop(Path(folder), options.replicas, 64, 10.0) as behind,
        gateway(Path(folder), behind) as bench,
    ):
        headers = b"authorization: Bearer %b\r\n" % bench.api_key.encode()
        rig = Rig(Target(bench.plain_port, headers), (bench.gateway_pid,), behind.engine_ports[0], 2000)
        recorder = subprocess.Popen(
            [
                *(str(py_spy), "record", "--pid", str(bench.gateway_pid), "--native", "--duration", str(_SECONDS)),
                *("--rate", str(_RATE_HZ), "--format", options.format, "--output", str(options.output)),
            ],
        )
        uvloop.run(_repeated(options.part, rig))
        recorder.wait()
    if options.stages:
        Console().print(_table(options.output))
    else:
        print(f"{options.output}")


def _table(raw: Path) -> Table:
    table = Table("stage", "share of the gateway's CPU", title="Stages of a request")
    with raw.open() as stacks:
        for stage, share in shares(stacks).items():
            table.add_row(stage, f"{share:.1%}")
    return table


if __name__ == "__main__":
    main()
