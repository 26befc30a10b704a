"""`shoal drill` on a fleet of real processes: it reports what held, and leaves nothing behind, however it ends."""

import json
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from tests.fleets import PROJECT, SHOAL, Fleet, wait_until

pytestmark = [pytest.mark.servers, pytest.mark.drill, pytest.mark.timeout(600)]


def journal(fleet: Fleet) -> Path:
    return fleet.state_dir / "run" / "drill-to-take-back.json"


def drill_keys(fleet: Fleet) -> list[bool]:
    """Return for each key made by a drill whether it is revoked."""
    with fleet.registry() as registry:
        keys = registry.get("/v1/tenants/acme/keys").raise_for_status().json()["data"]
    return [key["revoked"] for key in keys if key["id"].startswith("drill-")]


def test_replica_crash_drill_runs_and_reports(sim_fleet: Fleet) -> None:
    done = sim_fleet.shoal("drill", "replica-crash", "--tenant", "acme", "-o", "json", timeout_s=300.0)
    assert done.returncode == 0, done.stdout + done.stderr
    (made,) = json.loads(done.stdout)["reports"]
    assert made["passed"] and made["wrongly_failed"] == 0 and made["requests"] > 20
    assert made["effect_after_s"] is not None and not made["alert_checked"], "no Prometheus runs beside this fleet"
    kept = sorted((sim_fleet.state_dir / "drills").glob("*-replica-crash.json"))
    assert json.loads(kept[-1].read_text()) == made
    assert not journal(sim_fleet).exists() and drill_keys(sim_fleet) and all(drill_keys(sim_fleet))


@pytest.mark.soak
def test_terminated_drill_undoes_its_faults(sim_fleet: Fleet) -> None:
    bus = psutil.Process(sim_fleet.pid("bus"))
    command = [*SHOAL, "drill", "bus-away", "--tenant", "acme"]
    played = subprocess.Popen(
        command, env=sim_fleet.environment, cwd=PROJECT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        wait_until("the bus is stopped", lambda: bus.status() == psutil.STATUS_STOPPED, 120)
        assert journal(sim_fleet).exists()
        played.send_signal(signal.SIGTERM)
        assert played.wait(120) != 0
    finally:
        played.kill()
        played.wait()
    assert bus.status() != psutil.STATUS_STOPPED
    assert not journal(sim_fleet).exists() and all(drill_keys(sim_fleet))


@pytest.mark.soak
def test_next_drill_undoes_the_faults_of_a_killed_one(sim_fleet: Fleet) -> None:
    bus = psutil.Process(sim_fleet.pid("bus"))
    command = [*SHOAL, "drill", "bus-away", "--tenant", "acme"]
    played = subprocess.Popen(
        command, env=sim_fleet.environment, cwd=PROJECT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        wait_until("the bus is stopped", lambda: bus.status() == psutil.STATUS_STOPPED, 120)
    finally:
        played.kill()
        played.wait()
    time.sleep(1.0)  # no drill undoes the fault meanwhile
    assert bus.status() == psutil.STATUS_STOPPED and journal(sim_fleet).exists()
    refused = sim_fleet.shoal("drill", "bus-away", "--tenant", "nobody", timeout_s=200.0)
    assert refused.returncode == 1, "there is no such tenant, and what was left is taken back before that"
    assert bus.status() != psutil.STATUS_STOPPED
    assert not journal(sim_fleet).exists() and all(drill_keys(sim_fleet))
