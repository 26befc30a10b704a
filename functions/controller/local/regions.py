"""Regions on one machine: `shoal up --region a` runs a complete installation of its own, separate from the others.

    .shoal/regions/a/          its state: bus, store, database, logs, ports, its own internal token
    .shoal/regions.json        all regions and their addresses (`functions.fleet.regions`)
    .shoal/{gitops.git,tls,models,secrets}   shared: repository, authority, base weights, pepper, demo keys, and the
                                             token for requests between registries

A region keeps the ports that it got first, which are 200 above those of the region before it.
"""

from pathlib import Path

import msgspec

from functions.controller.local.files import replace_file
from functions.controller.local.layout import StateLayout
from functions.controller.local.settings import LocalSettings
from functions.fleet.regions import MAX_REGIONS, RegionAddress, RegionsUnreadable, read_regions

PORTS_APART = 200
HIGHEST_BASE = 65_300


class TooManyRegions(Exception):
    """No further region is possible; the message has the limit."""


def regions_of(home: StateLayout) -> dict[str, RegionAddress]:
    """Return the regions that were ever started here, or none without the file. Raises RegionsUnreadable."""
    return read_regions(home.regions_file) if home.regions_file.exists() else {}


def ensure_region(layout: StateLayout, name: str, first_base: int) -> RegionAddress:
    """Return the region's address. A new region gets the lowest free ports and is stored; raise TooManyRegions if the
    limit is reached or no ports are free. The caller holds the lock."""
    known = regions_of(layout)
    if name in known:
        return known[name]
    if len(known) >= MAX_REGIONS:
        raise TooManyRegions(f"{len(known)} regions exist, which is the limit: {', '.join(sorted(known))}")
    taken = {address.port_base for address in known.values()}
    bases = range(first_base + PORTS_APART, HIGHEST_BASE, PORTS_APART)
    base = next((base for base in bases if base not in taken), None)
    if base is None:
        raise TooManyRegions(f"no free ports above {first_base} for the region {name}: set a lower SHOAL_PORT_BASE")
    address = RegionAddress(f"https://127.0.0.1:{base + 4}", f"https://127.0.0.1:{base + 3}", base)
    replace_file(layout.regions_file, msgspec.json.format(msgspec.json.encode(known | {name: address}), indent=1))
    return address


def settings_of(settings: LocalSettings, address: RegionAddress) -> LocalSettings:
    """Return the settings with the region's port base (the present one if it has none) and no other port settings."""
    ports: dict[str, int | None] = {name: None for name in LocalSettings.model_fields if name.startswith("port_")}
    return settings.model_copy(update=ports | {"port_base": address.port_base or settings.port_base})


def control_sockets(layout: StateLayout) -> list[Path]:
    """Return the sockets of all controllers that may follow the repository, in the plain fleet and in regions."""
    home = StateLayout(layout.home)
    try:
        names = sorted(regions_of(home))
    except RegionsUnreadable:
        names = []
    layouts = [layout, home, *(StateLayout.at(layout.home, name) for name in names)]
    return list(dict.fromkeys(each.control_socket for each in layouts))
