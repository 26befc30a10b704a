"""Prometheus of a local fleet, if it is installed: its scrape configuration, the shipped rules and its process.

The set of agents changes with the pools' sizes. Their addresses are therefore in a separate file that Prometheus
watches, and its process is started only once. It starts last and stops first, because nothing depends on it.
"""

import json
from collections.abc import Iterable
from typing import Any

from functions.controller.local.context import HOST, PlanContext
from functions.controller.local.files import replace_file
from functions.controller.local.layout import StateLayout
from functions.controller.local.ports import PortPlan
from functions.controller.local.spec import HttpProbe, ProcessSpec, Timing
from functions.telemetry.alerting.scaled import rules_text

SCRAPE_EVERY_S = 5.0
_KEPT = {"storage.tsdb.retention.time": "2d", "storage.tsdb.retention.size": "512MB"}


def prometheus(context: PlanContext) -> ProcessSpec:
    port = context.ports.prometheus
    url = f"http://{HOST}:{port}/-/healthy"
    flags = {
        "config.file": context.layout.monitoring_dir / "prometheus.yml",
        "storage.tsdb.path": context.layout.data_dir("prometheus"),
        "web.listen-address": f"{HOST}:{port}",
        "log.level": "warn",
        **_KEPT,
    }
    return ProcessSpec(
        name="prometheus",
        role="prometheus",
        argv=(str(context.prometheus), *(f"--{name}={value}" for name, value in flags.items())),
        readiness=HttpProbe(url),
        liveness=HttpProbe(url),
        timing=Timing(start_s=120, drain_s=10, liveness_failing_s=60),
        port=port,
    )


def ensure_monitoring(layout: StateLayout, ports: PortPlan, scale: float = 1.0) -> None:
    """Write Prometheus' configuration and rules of this version, for these ports. `scale` is a factor for the alerts'
    windows and the scrape interval. A running Prometheus applies the files at SIGHUP. Raises ValueError if `scale` is
    invalid."""
    every_s = max(1, round(SCRAPE_EVERY_S * scale))
    layout.monitoring_dir.mkdir(parents=True, exist_ok=True)
    replace_file(layout.monitoring_dir / "rules.yaml", rules_text(scale, every_s))
    # JSON is valid YAML and needs no YAML library.
    made = json.dumps(_configuration(layout, ports, every_s), indent=1).encode()
    replace_file(layout.monitoring_dir / "prometheus.yml", made)


def write_agent_targets(layout: StateLayout, specs: Iterable[ProcessSpec]) -> None:
    """Write the agents' current addresses to the file that Prometheus watches; do nothing if monitoring was not set
    up."""
    if layout.monitoring_dir.is_dir():
        targets = sorted(f"{HOST}:{spec.port}" for spec in specs if spec.role == "agent")
        replace_file(layout.monitoring_dir / "agents.json", json.dumps([{"targets": targets}]).encode())


def _configuration(layout: StateLayout, ports: PortPlan, every_s: int) -> dict[str, Any]:
    registry = {
        "scheme": "https",
        "tls_config": {"ca_file": str(layout.ca_file)},
        "authorization": {"credentials_file": str(layout.secret("internal-token"))},
    }
    return {
        "global": {"scrape_interval": f"{every_s}s", "evaluation_interval": f"{every_s}s"},
        "rule_files": [str(layout.monitoring_dir / "rules.yaml")],
        "scrape_configs": [
            {"job_name": "shoal-gateway", "static_configs": [{"targets": [f"{HOST}:{ports.gateway_metrics}"]}]},
            {"job_name": "shoal-registry", **registry, "static_configs": [{"targets": [f"{HOST}:{ports.registry}"]}]},
            {"job_name": "shoal-agent", "file_sd_configs": [{"files": [str(layout.monitoring_dir / "agents.json")]}]},
        ],
    }
