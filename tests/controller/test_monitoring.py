"""Prometheus beside a local fleet: run if it is installed, with the shipped rules, scraping all processes."""

import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from functions.controller.local.layout import StateLayout
from functions.controller.local.monitoring import ensure_monitoring, write_agent_targets
from functions.controller.local.plan import plan_fleet
from functions.controller.local.pools import Target
from functions.controller.local.spec import STOP_ORDER
from tests.controller.test_plan import CONTEXT, POOL


def test_prometheus_joins_the_fleet_only_if_installed() -> None:
    assert "prometheus" not in plan_fleet(CONTEXT, [POOL], Target(), {})
    spec = plan_fleet(replace(CONTEXT, prometheus=Path("/bin/prometheus")), [POOL], Target(), {})["prometheus"]
    assert "--web.listen-address=127.0.0.1:8452" in spec.argv
    assert STOP_ORDER[0] == spec.role, "whatever else stops, nothing waits for it"


def test_growing_pool_does_not_restart_prometheus(tmp_path: Path) -> None:
    layout = StateLayout.at(tmp_path)
    context = replace(CONTEXT, layout=layout, prometheus=Path("/bin/prometheus"))
    small, large = (plan_fleet(context, [replace(POOL, replicas=n)], Target(engine="sim"), {}) for n in (1, 3))
    assert small["prometheus"].spec_hash == large["prometheus"].spec_hash
    ensure_monitoring(layout, context.ports)
    write_agent_targets(layout, large.values())
    (group,) = json.loads((layout.monitoring_dir / "agents.json").read_text())
    assert group["targets"] == ["127.0.0.1:8480", "127.0.0.1:8481", "127.0.0.1:8482"]


def test_promtool_accepts_the_configuration(tmp_path: Path) -> None:
    tool = shutil.which("promtool")
    if tool is None:
        pytest.skip("promtool is not installed: apt-get install prometheus")
    layout = StateLayout.at(tmp_path)
    layout.make_directories()
    for file in (layout.ca_file, layout.secret("internal-token")):
        file.write_text("x")
    ensure_monitoring(layout, CONTEXT.ports)
    command = [tool, "check", "config", str(layout.monitoring_dir / "prometheus.yml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
