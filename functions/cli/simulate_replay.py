"""`shoal simulate replay FILE`: does the simulation choose what a gateway chose? Exit 1 where it does not.

The file is what a gateway wrote with SHOAL_GATEWAY_DECISIONS_FILE (`functions.gateway.decision_recorder`).
"""

import sys
from dataclasses import asdict
from pathlib import Path

import orjson
from rich.table import Table

from functions.cli.refused import Refused
from functions.cli.terminal import make_console
from functions.simulator.replay.replay import Replay
from functions.simulator.replay.replay import replay as replay_file
from functions.simulator.workload.trace_text import TraceUnreadable


def replay(recording: Path, *, as_json: bool) -> None:
    try:
        found = replay_file(recording)
    except TraceUnreadable as error:
        raise Refused(f"it cannot be replayed: {error}") from error
    if as_json:
        sys.stdout.write(orjson.dumps(asdict(found), option=orjson.OPT_INDENT_2).decode() + "\n")
    else:
        _show(found)
    if found.differing:
        raise Refused(f"{found.differing} events led to other choices than the gateway's")


def _show(found: Replay) -> None:
    console = make_console()
    console.print(
        f"{found.requests} requests in {found.seconds:.0f} s: {found.routes} routes, {found.waits} waits, "
        f"{found.refusals} refusals; {found.differing or 'none'} chosen otherwise by the simulation"
    )
    if not found.differences:
        return
    table = Table("line", "the gateway chose", "its simulation", box=None, pad_edge=False)
    for one in found.differences:
        table.add_row(str(one.line), " ".join(filter(None, one.recorded)), " ".join(filter(None, one.replayed)))
    console.print(table)
