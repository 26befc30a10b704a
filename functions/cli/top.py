"""`shoal top`: pools, replicas, adapters by tier and rollouts of the fleet, from the registry.

Live on a terminal until interrupted, elsewhere one poll. With `-o json`, an object for every poll.
"""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import msgspec
import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from functions.api.ids import EngineName
from functions.cli.context import current_context
from functions.cli.refused import CommandRefused
from functions.cli.registry_client import Registry, RegistryUnreachable
from functions.cli.rollout_tables import rollout_table
from functions.cli.terminal import make_console
from functions.fleet.heartbeat import Heartbeat
from functions.fleet.pool_board import REPORT_PATH
from functions.registry.console_tiers import Tiers, tiers_of

SHOWN_REPLICAS = 40
SHOWN_FAILURES = 5
PHASE_COLOURS = {"ready": "green", "warm": "cyan", "starting": "yellow", "pending": "yellow", "draining": "yellow"}


def pool_table(replicas: Sequence[Mapping[str, Any]]) -> Table:
    table = Table("pool", box=None, pad_edge=False)
    for heading in ("ready", "running", "waiting", "kv", "adapter loads", "free slots"):
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
    for heading in ("running", "waiting", "kv", "adapters", "free slots", "heartbeat"):
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
    """Return a line for each overloaded pool: the active steps of the overload ladder and the reason."""
    return [
        f"[yellow]![/] {escape(name)} is overloaded: {', '.join(pool['rungs'])} ({escape(str(pool['why']))})"
        for name, pool in sorted(pools.items())
        if pool["rungs"]
    ]


def failure_lines(tiers: Sequence[Tiers]) -> list[str]:
    """Return lines for the first SHOWN_FAILURES adapters that cannot be loaded, with the replica's message, and for the
    number of the others."""
    failing = {name: words for each in tiers for name, words in each.failing.items()}
    lines = [f"[red]![/] {escape(name)}: {escape(words)}" for name, words in sorted(failing.items())[:SHOWN_FAILURES]]
    more = len(failing) - SHOWN_FAILURES
    return [*lines, *([f"[dim]… and {more} more cannot be loaded[/]"] if more > 0 else [])]


MODELS_EVERY = 5  # polls per read of the catalogue, which changes rarely and may be long


@dataclass(frozen=True, slots=True)
class FleetPoll:
    bus_connected: bool
    replicas: list[dict[str, Any]]
    tiers: tuple[Tiers, ...]
    rollouts: list[dict[str, Any]]
    pools: dict[str, dict[str, Any]]  # pools as their gateways report them


def top(every_s: float, *, as_json: bool) -> None:
    console = make_console()
    with Registry(current_context(clones=True)) as registry:
        looks = _polls(registry, every_s)
        if as_json:
            for look in looks:
                typer.echo(json.dumps(asdict(look)))
        elif console.is_terminal:
            _live(looks, console)
        else:
            console.print(drawn(next(looks)))


def drawn(look: FleetPoll) -> RenderableType:
    parts: list[RenderableType] = [pool_table(look.replicas), Text(), replica_table(look.replicas)]
    if not look.bus_connected:
        parts.append(Text("the registry cannot reach the fleet bus: these are the last data that it received", "red"))
    parts += [Text.from_markup(line) for line in overload_lines(look.pools)]
    if look.tiers:
        parts += [Text(), tier_table(look.tiers)]
        parts += [Text.from_markup(line) for line in failure_lines(look.tiers)]
    if look.rollouts:
        parts += [Text(), rollout_table(look.rollouts)]
    return Group(*parts)


def _live(looks: Iterator[FleetPoll], console: Console) -> None:
    with Live(console=console, auto_refresh=False, screen=True, vertical_overflow="ellipsis") as live:
        for look in looks:
            stamp = Text(f"{time.strftime('%H:%M:%S')}   ctrl-c ends", "dim")
            live.update(Group(stamp, Text(), drawn(look)), refresh=True)


def _polls(registry: Registry, every_s: float) -> Iterator[FleetPoll]:
    """Poll the fleet every `every_s` for ever. If the registry does not answer, repeat the last result; raise if there
    is none yet."""
    models: list[dict[str, Any]] = []
    last: FleetPoll | None = None
    count = 0
    while True:
        try:
            if count % MODELS_EVERY == 0:
                models = list(registry.pages("/v1/models"))
            last = poll_fleet(registry, models)
        except RegistryUnreachable:
            if last is None:
                raise
        yield last
        count += 1
        time.sleep(every_s)


def poll_fleet(registry: Registry, models: list[dict[str, Any]]) -> FleetPoll:
    fleet = registry.get("/v1/fleet")
    replicas = sorted(fleet["replicas"], key=lambda replica: str(replica["replica_id"]))
    rollouts = list(registry.pages("/v1/rollouts", {"active": "true"}))
    tiers = tiers_of(_adapters(models), _heartbeats(replicas))
    return FleetPoll(bool(fleet["bus_connected"]), replicas, tiers, rollouts, dict(registry.get(REPORT_PATH)["pools"]))


def _adapters(models: list[dict[str, Any]]) -> Iterator[tuple[str, EngineName]]:
    for model in models:
        if model["type"] == "lora":
            for version in model["versions"]:
                yield str(model["pool"]), EngineName(version["engine_name"])


def _heartbeats(replicas: list[dict[str, Any]]) -> list[Heartbeat]:
    try:
        return msgspec.convert(replicas, list[Heartbeat])
    except msgspec.ValidationError as error:
        raise CommandRefused(f"the registry returned replicas that this version cannot read: {error}") from error
