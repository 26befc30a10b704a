"""Ports of a running fleet in its state directory: another shell need not repeat the settings.

Law: a port setting of the environment wins over all that was kept; `shoal down` forgets. Neighbours: ports.py (what the
settings mean), the CLI's place.py (who reads them).
"""

from collections.abc import Mapping

import msgspec

from functions.controller.local.layout import StateLayout
from functions.controller.local.ledger import replace_file
from functions.controller.local.settings import LocalSettings

_PREFIX = "port_"


def keep_ports(layout: StateLayout, settings: LocalSettings) -> None:
    replace_file(layout.ports_file, msgspec.json.encode(_chosen(settings)))


def forget_ports(layout: StateLayout) -> None:
    layout.ports_file.unlink(missing_ok=True)


def with_kept_ports(settings: LocalSettings, layout: StateLayout, environment: Mapping[str, str]) -> LocalSettings:
    """The settings with the ports that the fleet runs on; as they are where the environment names any port."""
    if any(name.startswith("SHOAL_PORT_") for name in environment):
        return settings
    try:
        kept = msgspec.json.decode(layout.ports_file.read_bytes(), type=dict[str, int])
    except (OSError, msgspec.DecodeError):
        return settings
    known = {name: port for name, port in kept.items() if name in _names() and 0 < port < 65_536}
    return settings.model_copy(update=known)


def as_environment(settings: LocalSettings) -> dict[str, str]:
    """The same choice in the variables' words, for a process that is started with it."""
    return {f"SHOAL_{name.upper()}": str(port) for name, port in _chosen(settings).items()}


def _chosen(settings: LocalSettings) -> dict[str, int]:
    return {name: port for name in _names() if (port := getattr(settings, name)) is not None}


def _names() -> list[str]:
    return [name for name in LocalSettings.model_fields if name.startswith(_PREFIX)]
