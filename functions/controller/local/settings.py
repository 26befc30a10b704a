"""Settings of the local fleet and of its controller process, from the environment.

What the operator may choose per run (engine, replicas) is not here: it is the target (`pools.Target`), kept in the
state directory, so that a controller that starts again runs what was asked for.
"""

import sys
from pathlib import Path
from typing import Literal

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from functions.decisions.rollout.evaluation import RolloutTimeouts
from functions.fleet.regions import REGION_PATTERN


class LocalSettings(BaseSettings):
    """Read from the environment, prefix `SHOAL_`."""

    model_config = SettingsConfigDict(env_prefix="SHOAL_", frozen=True, extra="ignore", use_attribute_docstrings=True)

    state_dir: Path = Path(".shoal")
    """Directory of everything the fleet keeps. Default: below the working directory, so that checkouts don't mix."""

    region: str | None = Field(None, pattern=rf"^{REGION_PATTERN}$")
    """Which of several installations, which share repository and pepper. Default: none, it is the only one."""

    project_dir: Path = Path()
    """Directory with inferenceservices/, policies/ and registry/. Default: the working directory."""

    engine_venv: Path = Path(".venv-engine")
    """Virtual environment of the engine (vLLM). Its own, since its pins and ours do not resolve together."""

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
    """Port of Prometheus, where it is installed. Default: base + 12."""

    port_engines: int | None = None
    """First port of the engines, one each. Default: base + 20."""

    port_agents: int | None = None
    """First port of the replica agents, one each. Default: base + 40."""

    port_peers: int | None = None
    """First port where agents serve gateways and each other, one each. Default: base + 60."""

    max_engines: int | None = None
    """How many engines the autoscaler may have awake on this machine, warm ones included; those that sleep take no
    part of an accelerator and do not count. Default: one for each core that this process may use (affinity and control
    group), or as many as there are ports for where they are simulated. What InferenceServices ask for themselves is
    started in any case."""

    parked_engines: int = Field(0, ge=0, le=8)
    """How many processes wait that have imported an engine, and hold nothing else: an engine that starts is forked from
    one, and has no imports to make. One serves every start in one environment (Python, variables); pools that differ in
    nothing but arguments share it. An imported vLLM has some 800 MB resident, of which what is forked from it shares
    about half. Default: 0, a machine that somebody works on."""

    trace_store: Literal["chdb", "none"] = "chdb"
    """Where request traces are kept to be searched: chDB in a process of its own (some 400 MB of memory), where it is
    installed. none: the last 256 MB of them in files, which `shoal trace` reads."""

    surge: bool = True
    """Whether a pool that is changed gets one replica more until it is done, where its InferenceService and the memory
    allow it. Default: yes; a machine that is full anyway is better off without."""

    prometheus: bool = True
    """Whether Prometheus is started beside the fleet, with the rules that are shipped. Default: yes, where it is on
    PATH."""

    environment: str = Field("local", pattern=r"^[a-z0-9]{1,16}$")
    """A part of the text of each key that the registry makes. live, prod or production: drills are refused without
    consent."""

    zones: int = Field(1, ge=1, le=8)
    """Over how many zones the replicas are spread, in name only: zone-0, zone-1 and so on, so that the loss of one can
    be played. Default: 1, they name none."""

    simulated_accelerators: bool = False
    """Whether each replica has a simulated accelerator, which is idle until a drill makes it fail. Default: no, it has
    those of the machine."""

    drain_timeout_s: float = 20.0
    """Seconds that gateway and replicas get to finish open requests before they are stopped. Default: 20, which a
    stream of some hundred tokens on CPU needs."""

    @property
    def python(self) -> Path:
        """The interpreter of our own processes."""
        return Path(sys.executable)

    @property
    def engine_python(self) -> Path:
        """The interpreter of the real engine. Not resolved: a virtual environment's python is a symbolic link."""
        return self.engine_venv.absolute() / "bin" / "python"


class ControllerSettings(BaseSettings):
    """The controller process's own; the fleet's say where it all lies."""

    model_config = SettingsConfigDict(
        env_prefix="SHOAL_CONTROLLER_", frozen=True, extra="ignore", use_attribute_docstrings=True
    )

    config_poll_s: float = Field(1.0, gt=0, le=60)
    """Seconds between two looks at the configuration's files. Default: 1, which a person editing does not notice."""

    publish_retry_s: float = Field(3.0, gt=0, le=300)
    """Seconds until publishing is tried again where something was missing: an artifact, the registry. Default: 3."""

    resync_s: float = Field(60.0, gt=0, le=3600)
    """Seconds between two publications although no file changed: a registry that lost its state gets it back, and an
    artifact pointer that moved is followed. Default: 60."""

    rollout_fresh_s: float = Field(45.0, gt=0, le=3600)
    """Evidence of a rollout older than this is none. Default: 45, three of the gateways' whole reports."""

    rollout_load_deadline_s: float = Field(600.0, gt=0, le=86400)
    """Seconds that a rollout waits for its new version to be loaded, then it is taken back; for a base's that is on no
    replica any more it waits as long. Default: 600."""

    rollout_load_patience_s: float = Field(20.0, ge=0, le=3600)
    """Seconds that all replicas may say that they cannot load it: a store may be away for a moment. Default: 20."""

    slow_after_s: float = Field(60.0, ge=0, le=3600)
    """Seconds that a replica has to be slow by itself, by its fellows' measure, until it is drained and restarted. 0:
    not. Default: 60, six of the agents' measurements."""

    slow_backoff_s: float = Field(600.0, ge=1, le=86400)
    """Seconds after any start in a pool in which nobody of it is restarted for being slow; twice as many after each
    such restart of the last six hours. Default: 600."""

    otlp_endpoint: str | None = None
    """An OpenTelemetry collector's OTLP over HTTP, such as http://collector:4318; pushes and rollouts go there as
    events. Default: none, and none are made."""

    otlp_headers_file: Path | None = None
    """`name: value` lines that the collector wants to see, such as a token. Default: none."""

    otlp_ca_file: Path | None = None
    """Authority of the collector's certificate. Default: the system's."""

    @property
    def patience(self) -> RolloutTimeouts:
        return RolloutTimeouts(self.rollout_fresh_s, self.rollout_load_deadline_s, self.rollout_load_patience_s)

    log_level: str = "INFO"
    """Python's name of the level. Default: INFO, which has one line per change of a process."""
