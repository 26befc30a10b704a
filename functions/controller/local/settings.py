"""Settings of the local fleet and of its controller process, from the environment.

What the operator chooses per run (engine, replicas) is not here. It is the target (`pools.Target`), stored in the state
directory, so that a restarted controller runs the same.
"""

import sys
from pathlib import Path
from typing import Literal

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from functions.decisions.rollout.evaluation import RolloutTimeouts
from functions.fleet.regions import REGION_PATTERN


class LocalSettings(BaseSettings):
    """Settings of the local fleet, read from the environment with the prefix `SHOAL_`."""

    model_config = SettingsConfigDict(env_prefix="SHOAL_", frozen=True, extra="ignore", use_attribute_docstrings=True)

    state_dir: Path = Path(".shoal")
    """Directory of everything that the fleet stores. Default: below the working directory, so that checkouts do not
    mix."""

    region: str | None = Field(None, pattern=rf"^{REGION_PATTERN}$")
    """Name of this installation, if several share a repository and a pepper. Default: none, it is the only one."""

    project_dir: Path = Path()
    """Directory with inferenceservices/, policies/ and registry/. Default: the working directory."""

    engine_venv: Path = Path(".venv-engine")
    """Virtual environment of the engine (vLLM). It is separate because its pins do not resolve with shoal's."""

    port_base: int = 8440
    """First of the fleet's ports; the others follow by offset. Default: the gateway then listens on 8443."""

    port_gateway: int | None = None
    """Port of the gateway (https). Default: base + 3."""

    port_registry: int | None = None
    """Port of the registry (https). Default: base + 4."""

    port_gateway_metrics: int | None = None
    """Port of the gateway's Prometheus metrics (http). Default: base + 5."""

    port_bus: int | None = None
    """Port of Valkey. Default: base + 6."""

    port_s3: int | None = None
    """Port of SeaweedFS's S3 (http). Default: base + 7."""

    port_s3_master: int | None = None
    """Port of SeaweedFS's master; its gRPC port is 100 above. Default: base + 8."""

    port_s3_volume: int | None = None
    """Port of SeaweedFS's volume server; its gRPC port is 100 above. Default: base + 9."""

    port_s3_filer: int | None = None
    """Port of SeaweedFS's filer; its gRPC port is 100 above. Default: base + 10."""

    port_traces: int | None = None
    """Port of the trace store (http, as ClickHouse's). Default: base + 11."""

    port_prometheus: int | None = None
    """Port of Prometheus, if it is installed. Default: base + 12."""

    port_engines: int | None = None
    """First port of the engines; each engine has one. Default: base + 20."""

    port_agents: int | None = None
    """First port of the replica agents; each agent has one. Default: base + 40."""

    port_peers: int | None = None
    """First port on which agents serve gateways and each other; each agent has one. Default: base + 60."""

    max_engines: int | None = None
    """Number of engines that the autoscaler may have awake on this machine, warm ones included. Sleeping engines use
    no part of an accelerator and do not count. Default: one per core that this process may use (affinity and control
    group); for simulated engines, as many as there are ports. Replicas that InferenceServices declare are started in
    any case."""

    parked_engines: int = Field(0, ge=0, le=8)
    """Number of parked processes. A parked process has imported an engine and holds nothing else: an engine that
    starts is forked from it and needs no imports. One parked process serves every start in one environment (Python,
    variables), so pools that differ only in arguments share it. An imported vLLM has some 800 MB resident, of which an
    engine forked from it shares about half. Default: 0, for a workstation."""

    trace_store: Literal["chdb", "none"] = "chdb"
    """Store in which request traces can be searched: chDB in a process of its own (some 400 MB of memory), if it is
    installed. none: the last 256 MB of traces in files, which `shoal trace` reads."""

    surge: bool = True
    """Start one extra replica of a pool while it is changed, if its InferenceService and the memory allow it. Default:
    true; set false on a machine that is full anyway."""

    prometheus: bool = True
    """Start Prometheus with the fleet, with the shipped rules. Default: true, if it is on PATH."""

    environment: str = Field("local", pattern=r"^[a-z0-9]{1,16}$")
    """Environment name that is part of each key that the registry makes. With live, prod or production, drills are
    refused without consent."""

    zones: int = Field(1, ge=1, le=8)
    """Number of zones over which the replicas are spread, in name only (zone-0, zone-1 and so on), so that a drill can
    simulate the loss of one. Default: 1; replicas then name no zone."""

    simulated_accelerators: bool = False
    """Give each replica a simulated accelerator, which is idle until a drill makes it fail. Default: false; replicas
    then use the machine's accelerators."""

    drain_timeout_s: float = 20.0
    """Seconds that gateway and replicas have to finish open requests before they are stopped. Default: 20, which a
    stream of some hundred tokens on CPU needs."""

    @property
    def python(self) -> Path:
        """Interpreter of shoal's own processes: the one that runs this."""
        return Path(sys.executable)

    @property
    def engine_python(self) -> Path:
        """Interpreter of the real engine. Not resolved, because a virtual environment's python is a symbolic link."""
        return self.engine_venv.absolute() / "bin" / "python"


class ControllerSettings(BaseSettings):
    """Settings of the controller process; paths and ports are in `LocalSettings`."""

    model_config = SettingsConfigDict(
        env_prefix="SHOAL_CONTROLLER_", frozen=True, extra="ignore", use_attribute_docstrings=True
    )

    config_poll_s: float = Field(1.0, gt=0, le=60)
    """Seconds between two checks of the configuration's branch. Default: 1, which an operator does not notice."""

    publish_retry_s: float = Field(3.0, gt=0, le=300)
    """Seconds until publishing is retried if something was missing: an artifact, the registry. Default: 3."""

    resync_s: float = Field(60.0, gt=0, le=3600)
    """Seconds between two publications without a change: a registry that lost its state gets it back, and an artifact
    pointer that moved is followed. Default: 60."""

    rollout_fresh_s: float = Field(45.0, gt=0, le=3600)
    """Seconds after which a rollout's evidence is ignored. Default: 45, three full reports of the gateways."""

    rollout_load_deadline_s: float = Field(600.0, gt=0, le=86400)
    """Seconds that a rollout waits for its new version to be loaded before it is rolled back, or for a base's version
    that no replica has any more. Default: 600."""

    rollout_load_patience_s: float = Field(20.0, ge=0, le=3600)
    """Seconds for which all replicas may report load failures: a store may be unavailable. Default: 20."""

    slow_after_s: float = Field(60.0, ge=0, le=3600)
    """Seconds after which a replica slow by itself, compared with its pool, is drained and restarted. 0: never.
    Default: 60, six of the agents' measurements."""

    slow_backoff_s: float = Field(600.0, ge=1, le=86400)
    """Seconds after any start in a pool without a restart for slowness; doubled after each such restart of the last
    six hours. Default: 600."""

    otlp_endpoint: str | None = None
    """URL of an OpenTelemetry collector's OTLP over HTTP, such as http://collector:4318, for events of pushes and
    rollouts. Unset: none are sent."""

    otlp_headers_file: Path | None = None
    """File with `name: value` lines of headers for the collector, such as a token. Default: none."""

    otlp_ca_file: Path | None = None
    """CA of the collector's certificate. Default: the system's."""

    @property
    def patience(self) -> RolloutTimeouts:
        return RolloutTimeouts(self.rollout_fresh_s, self.rollout_load_deadline_s, self.rollout_load_patience_s)

    log_level: str = "INFO"
    """Log level, by Python's name. Default: INFO, which has one line per change of a process."""
