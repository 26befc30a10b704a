"""Ports of the fleet: one base and fixed offsets, each overridable, stored while the fleet runs.

Rule: if the environment sets any port, all stored ports are ignored. Stored ports spare another shell the settings;
`shoal down` deletes them. `port_check` finds the process that holds a port.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec

from functions.controller.local.files import replace_file
from functions.controller.local.layout import StateLayout
from functions.controller.local.settings import LocalSettings

MAX_SLOTS = 20  # the offsets leave 20 ports each for engines, agents and peers
GRPC_ABOVE = 100  # SeaweedFS's default is +10000, which is outside the range of one base


@dataclass(frozen=True, slots=True)
class PortUse:
    """One port, its purpose and the environment variable that moves it."""

    port: int
    purpose: str
    setting: str


@dataclass(frozen=True, slots=True)
class PortPlan:
    gateway: int
    registry: int
    gateway_metrics: int
    bus: int
    s3: int
    s3_master: int
    s3_volume: int
    s3_filer: int
    traces: int
    prometheus: int
    engines: int
    agents: int
    peers: int

    def engine(self, slot: int) -> int:
        return self.engines + slot

    def agent(self, slot: int) -> int:
        return self.agents + slot

    def peer(self, slot: int) -> int:
        return self.peers + slot

    def uses(self, slots: Iterable[int]) -> tuple[PortUse, ...]:
        """Return every port that the fleet listens on; `slots` are those that replicas have."""
        fixed = [
            PortUse(self.gateway, "gateway (https)", "SHOAL_PORT_GATEWAY"),
            PortUse(self.registry, "registry (https)", "SHOAL_PORT_REGISTRY"),
            PortUse(self.gateway_metrics, "gateway metrics", "SHOAL_PORT_GATEWAY_METRICS"),
            PortUse(self.bus, "bus (Valkey)", "SHOAL_PORT_BUS"),
            PortUse(self.traces, "trace store", "SHOAL_PORT_TRACES"),
            PortUse(self.prometheus, "Prometheus", "SHOAL_PORT_PROMETHEUS"),
        ]
        for name, port in (
            ("s3", self.s3),
            ("s3_master", self.s3_master),
            ("s3_volume", self.s3_volume),
            ("s3_filer", self.s3_filer),
        ):
            purpose, setting = f"SeaweedFS {name.removeprefix('s3_')}", f"SHOAL_PORT_{name.upper()}"
            fixed += [PortUse(port, purpose, setting), PortUse(port + GRPC_ABOVE, purpose + " gRPC", setting)]
        replicas = [
            use
            for slot in sorted(slots)
            for use in (
                PortUse(self.engine(slot), f"engine {slot}", "SHOAL_PORT_ENGINES"),
                PortUse(self.agent(slot), f"replica agent {slot}", "SHOAL_PORT_AGENTS"),
                PortUse(self.peer(slot), f"replica agent {slot} for peers", "SHOAL_PORT_PEERS"),
            )
        ]
        return tuple(fixed + replicas)


def plan_ports(settings: LocalSettings) -> PortPlan:
    """Return the ports. Worked example (test_ports_follow_the_base): base 8440, gateway 8443, engine 1 on 8461."""
    base = settings.port_base

    def port(override: int | None, offset: int) -> int:
        return override if override is not None else base + offset

    return PortPlan(
        gateway=port(settings.port_gateway, 3),
        registry=port(settings.port_registry, 4),
        gateway_metrics=port(settings.port_gateway_metrics, 5),
        bus=port(settings.port_bus, 6),
        s3=port(settings.port_s3, 7),
        s3_master=port(settings.port_s3_master, 8),
        s3_volume=port(settings.port_s3_volume, 9),
        s3_filer=port(settings.port_s3_filer, 10),
        traces=port(settings.port_traces, 11),
        prometheus=port(settings.port_prometheus, 12),
        engines=port(settings.port_engines, 20),
        agents=port(settings.port_agents, 40),
        peers=port(settings.port_peers, 60),
    )


PORTS_PREFIX = "SHOAL_PORT_"  # prefix of environment variables
_PREFIX = "port_"


def save_ports(layout: StateLayout, settings: LocalSettings) -> None:
    replace_file(layout.ports_file, msgspec.json.encode(_chosen(settings)))


def forget_ports(layout: StateLayout) -> None:
    layout.ports_file.unlink(missing_ok=True)


def with_saved_ports(settings: LocalSettings, layout: StateLayout, environment: Mapping[str, str]) -> LocalSettings:
    """Return the settings with the stored ports, or unchanged if the environment sets any port or none are stored."""
    if any(name.startswith(PORTS_PREFIX) for name in environment):
        return settings
    try:
        kept = msgspec.json.decode(layout.ports_file.read_bytes(), type=dict[str, int])
    except (OSError, msgspec.DecodeError):
        return settings
    known = {name: port for name, port in kept.items() if name in _names() and 0 < port < 65_536}
    return settings.model_copy(update=known)


def as_environment(settings: LocalSettings) -> dict[str, str]:
    """Return the chosen ports as environment variables, for a process that is started with them."""
    return {f"SHOAL_{name.upper()}": str(port) for name, port in _chosen(settings).items()}


def _chosen(settings: LocalSettings) -> dict[str, int]:
    return {name: port for name in _names() if (port := getattr(settings, name)) is not None}


def _names() -> list[str]:
    return [name for name in LocalSettings.model_fields if name.startswith(_PREFIX)]
