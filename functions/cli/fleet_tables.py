"""Pools, replicas and adapters by tier, as the registry tells of them: for `shoal top`, and in part `shoal status`."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.markup import escape
from rich.table import Table

from functions.registry.console_tiers import Tiers

SHOWN_REPLICAS = 40
SHOWN_FAILURES = 5
PHASE_COLOURS = {"ready": "green", "warm": "cyan", "starting": "yellow", "pending": "yellow", "draining": "yellow"}


def pool_table(replicas: Sequence[Mapping[str, Any]]) -> Table:
    table = Table("pool", box=None, pad_edge=False)
    for heading in ("ready", "running", "waiting", "kv", "adapter loads", "room"):
        table.add_column(heading, justify="right")
    for pool in sorted({str(replica["pool"]) for replica in replicas}):
        mine = [replica for replica in replicas if replica["pool"] == pool]
        ready = [replica for replica in mine if replica["phase"] == "ready"]
        kv_usage_ratio = sum(replica["kv_usage_ratio"] for replica in ready) / len(ready) if ready else 0.0
        sums = [sum(replica[name] for replica in ready) for name in ("running", "waiting")]
        loads = sum(len(replica["adapters"]) for replica in ready)
        room = sum(replica.get("adapter_room", 0) for replica in ready)
        count = f"{len(ready)}/{len(mine)}"
        table.add_row(escape(pool), count, str(sums[0]), str(sums[1]), f"{kv_usage_ratio:.0%}", str(loads), str(room))
    return table


def replica_table(replicas: Sequence[Mapping[str, Any]]) -> Table:
    table = Table("replica", "phase", box=None, pad_edge=False)
    for heading in ("running", "waiting", "kv", "adapters", "room", "heard"):
        table.add_column(heading, justify="right")
    for replica in replicas[:SHOWN_REPLICAS]:
        phase = str(replica["phase"])
        table.add_row(
            escape(str(replica["replica_id"])),
            f"[{PHASE_COLOURS.get(phase, 'red')}]{escape(phase)}[/]",
            str(replica["running"]),
            str(replica["waiting"]),
            f"{replica['kv_usage_ratio']:.0%}",
            str(len(replica["adapters"])),
            str(replica.get("adapter_room", 0)),
            f"{replica['age_s']:.1f} s ago",
        )
    if len(replicas) > SHOWN_REPLICAS:
        table.add_row(f"[dim]… and {len(replicas) - SHOWN_REPLICAS} more[/]")
    return table


def tier_table(tiers: Sequence[Tiers]) -> Table:
    table = Table("adapters of", box=None, pad_edge=False)
    for heading in ("versions", "in an engine", "on disk", "in the store only", "failing"):
        table.add_column(heading, justify="right")
    for each in tiers:
        counts = (each.registered, each.in_engine, each.on_disk, each.in_store)
        failing = f"[red]{len(each.failing)}[/]" if each.failing else "0"
        table.add_row(escape(each.pool), *(f"{count:,}" for count in counts), failing)
    return table


def overload_lines(pools: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Of pools whose gateways have rungs of the overload ladder in force: which, and why."""
    return [
        f"[yellow]![/] {escape(name)} is overloaded: {', '.join(pool['rungs'])} ({escape(str(pool['why']))})"
        for name, pool in sorted(pools.items())
        if pool["rungs"]
    ]


def failure_lines(tiers: Sequence[Tiers]) -> list[str]:
    """The first of the adapters that cannot be loaded, with their replica's words."""
    failing = {name: words for each in tiers for name, words in each.failing.items()}
    lines = [f"[red]![/] {escape(name)}: {escape(words)}" for name, words in sorted(failing.items())[:SHOWN_FAILURES]]
    more = len(failing) - SHOWN_FAILURES
    return [*lines, *([f"[dim]… and {more} more cannot be loaded[/]"] if more > 0 else [])]
