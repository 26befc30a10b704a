"""`shoal top`: the fleet as it breathes, from the registry: pools, replicas, adapters by tier, rollouts.

Live on a terminal until it is interrupted; elsewhere one look; with `-o json` an object for every look.
"""

import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import msgspec
import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from functions.api.ids import EngineName
from functions.cli.fleet_tables import failure_lines, overload_lines, pool_table, replica_table, tier_table
from functions.cli.place import here
from functions.cli.refused import Refused
from functions.cli.registry_client import Registry, Unreachable
from functions.cli.rollout_tables import rollout_table
from functions.cli.terminal import make_console
from functions.fleet.heartbeat import Heartbeat
from functions.fleet.pool_board import REPORT_PATH
from functions.registry.console_tiers import Tiers, tiers_of

MODELS_EVERY = 5  # looks: the catalogue changes less often than the fleet, and may be long


@dataclass(frozen=True, slots=True)
class Look:
    bus_connected: bool
    replicas: list[dict[str, Any]]
    tiers: tuple[Tiers, ...]
    rollouts: list[dict[str, Any]]
    pools: dict[str, dict[str, Any]]  # as their gateways see them


def top(every_s: float, *, as_json: bool) -> None:
    console = make_console()
    with Registry(here(clones=True)) as registry:
        looks = _looks(registry, every_s)
        if as_json:
            for look in looks:
                typer.echo(json.dumps(asdict(look)))
        elif console.is_terminal:
            _live(looks, console)
        else:
            console.print(drawn(next(looks)))


def drawn(look: Look) -> RenderableType:
    parts: list[RenderableType] = [pool_table(look.replicas), Text(), replica_table(look.replicas)]
    if not look.bus_connected:
        parts.append(Text("the registry does not reach the fleet bus: this is what it heard last", "red"))
    parts += [Text.from_markup(line) for line in overload_lines(look.pools)]
    if look.tiers:
        parts += [Text(), tier_table(look.tiers)]
        parts += [Text.from_markup(line) for line in failure_lines(look.tiers)]
    if look.rollouts:
        parts += [Text(), rollout_table(look.rollouts)]
    return Group(*parts)


def _live(looks: Iterator[Look], console: Console) -> None:
    with Live(console=console, auto_refresh=False, screen=True, vertical_overflow="ellipsis") as live:
        for look in looks:
            stamp = Text(f"{time.strftime('%H:%M:%S')}   ctrl-c ends", "dim")
            live.update(Group(stamp, Text(), drawn(look)), refresh=True)


def _looks(registry: Registry, every_s: float) -> Iterator[Look]:
    """Endless. The registry away, the last look stays."""
    models: list[dict[str, Any]] = []
    last: Look | None = None
    count = 0
    while True:
        try:
            if count % MODELS_EVERY == 0:
                models = list(registry.pages("/v1/models"))
            last = look_at(registry, models)
        except Unreachable:
            if last is None:
                raise
        yield last
        count += 1
        time.sleep(every_s)


def look_at(registry: Registry, models: list[dict[str, Any]]) -> Look:
    fleet = registry.get("/v1/fleet")
    replicas = sorted(fleet["replicas"], key=lambda replica: str(replica["replica_id"]))
    rollouts = list(registry.pages("/v1/rollouts", {"active": "true"}))
    tiers = tiers_of(_adapters(models), _beats(replicas))
    return Look(bool(fleet["bus_connected"]), replicas, tiers, rollouts, dict(registry.get(REPORT_PATH)["pools"]))


def _adapters(models: list[dict[str, Any]]) -> Iterator[tuple[str, EngineName]]:
    for model in models:
        if model["type"] == "lora":
            for version in model["versions"]:
                yield str(model["pool"]), EngineName(version["engine_name"])


def _beats(replicas: list[dict[str, Any]]) -> list[Heartbeat]:
    try:
        return msgspec.convert(replicas, list[Heartbeat])
    except msgspec.ValidationError as error:
        raise Refused(f"the registry tells of replicas that this build does not understand: {error}") from error
