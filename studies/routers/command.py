"""`python -m studies routers`: routers compared on a simulated fleet, at shares of its capacity."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from functions.cli.refused import CommandRefused
from functions.cli.simulate_fleet import fleet
from functions.simulator.router_port import MakeRouter
from studies.routers.simulated import ROUTERS


def routers(
    names: Sequence[str],
    *,
    trace: Path | None,
    replicas: int,
    profile: str,
    loads: Sequence[float],
    seeds: int,
    requests: int,
    as_json: bool,
) -> None:
    fleet(
        trace=trace, replicas=replicas, profile=profile, loads=loads, seeds=seeds, requests=requests, as_json=as_json,
        routers=known_routers(names),
    )  # fmt: skip


def known_routers(names: Sequence[str]) -> Mapping[str, MakeRouter | None]:
    """Return the named routers, or all if none is named."""
    unknown = [name for name in names if name not in ROUTERS]
    if unknown:
        raise CommandRefused(f"there is no router {unknown[0]!r}: one of {', '.join(ROUTERS)}")
    return {name: ROUTERS[name] for name in names or ROUTERS}
