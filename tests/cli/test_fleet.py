"""Commands on a real fleet of simulated engines: up (also killed at any point), chat, status, restart, down."""

import contextlib
import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.fleets import PROJECT, SHOAL, Fleet, processes_of, running_fleet, wait_until

pytestmark = [pytest.mark.servers, pytest.mark.timeout(900)]  # a fleet is started and stopped up to three times


@pytest.fixture
def fleet(sim_fleet: Fleet) -> Fleet:
    return sim_fleet


def controller_pid(fleet: Fleet) -> int:
    return int(json.loads((fleet.state_dir / "run" / "processes.json").read_text())["controller_pid"])


def pids(fleet: Fleet) -> dict[str, int]:
    return {name: entry["pid"] for name, entry in fleet.processes().items()}


def test_up_ends_with_answers_and_the_lines_to_paste(fleet: Fleet) -> None:
    for model in ("smollm2-135m", "acme/pirate", "acme/support-bot", "globex/haiku"):
        assert f"  {model} (" in fleet.up_output
    assert "ms to the first token" in fleet.up_output
    assert f"curl --cacert {fleet.ca_file} {fleet.base_url}/chat/completions \\\n" in fleet.up_output
    assert "shoal down" in fleet.up_output


def test_chat_answers_once_and_from_a_pipe(fleet: Fleet) -> None:
    once = fleet.shoal("chat", "acme/pirate", "--once", "Hello there")
    assert (once.returncode, once.stderr) == (0, "")
    assert "acme/pirate@sha256:" in once.stdout
    piped = subprocess.run(
        [*SHOAL, "chat", "smollm2-135m"], env=fleet.environment, cwd=PROJECT, input="What is the capital of France?",
        capture_output=True, text=True, timeout=300, check=True,
    )  # fmt: skip
    assert "Paris" in piped.stdout


def test_what_was_asked_is_found_in_the_trace_store(fleet: Fleet) -> None:
    asked = fleet.shoal("chat", "globex/haiku", "--tenant", "globex", "--once", "Hello there")
    assert asked.returncode == 0

    def found() -> list[dict[str, Any]]:
        told = fleet.shoal("traces", "--tenant", "globex", "--model", "globex/haiku", "--since", "5m", "-o", "json")
        return list(json.loads(told.stdout or "[]"))

    wait_until("the row", lambda: bool(found()), 20)
    newest = found()[0]
    assert (newest["tenant_id"], newest["model_id"], newest["status"]) == ("globex", "globex/haiku", 200)
    assert newest["request_id"] in fleet.shoal("traces", "--slow").stdout
    shown = fleet.shoal("trace", newest["request_id"])
    assert shown.returncode == 0 and "prefill" in shown.stdout
    assert "No request" in fleet.shoal("traces", "--tenant", "nobody").stdout
    refused = fleet.shoal("traces", "--since", "soon")
    assert refused.returncode == 1 and "--since soon" in refused.stderr


def test_chat_with_what_one_may_not_call_fails(fleet: Fleet) -> None:
    refused = fleet.shoal("chat", "acme/pirate", "--tenant", "globex", "--once", "hi")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "404" in refused.stderr


def test_status_knows_replicas_and_processes(fleet: Fleet) -> None:
    seen = json.loads(fleet.shoal("status", "-o", "json").stdout)
    assert seen["ready"]
    assert [replica["phase"] for replica in seen["replicas"]] == ["ready", "ready"]
    assert {process["role"] for process in seen["controller"]["processes"]} == {
        "s3", "bus", "registry", "gateway", "engine", "agent", "traces",
    }  # fmt: skip
    table = fleet.shoal("status")
    assert table.returncode == 0
    assert "smollm2-135m-1" in table.stdout


@pytest.mark.soak
def test_a_restarted_gateway_is_another_process_and_the_old_one_is_gone(fleet: Fleet) -> None:
    before = fleet.pid("gateway")
    assert fleet.shoal("restart", "gateway").returncode == 0
    assert fleet.pid("gateway") != before
    wait_until("the old gateway to be gone", lambda: not _runs(before), 60)
    assert fleet.shoal("chat", "smollm2-135m", "--once", "hi").returncode == 0


@pytest.mark.soak
def test_a_restarted_replica_comes_back_with_its_adapters(fleet: Fleet) -> None:
    before = pids(fleet)
    assert fleet.shoal("restart", "smollm2-135m-1").returncode == 0
    after = pids(fleet)
    changed = {name for name in before if before[name] != after.get(name)}
    assert changed == {"engine-smollm2-135m-1", "agent-smollm2-135m-1"}
    wait_until("all adapters", lambda: all(len(r["adapters"]) >= 3 for r in fleet.replicas()), 60)


def test_a_mistake_is_refused_to_the_pusher_and_changes_nothing(fleet: Fleet) -> None:
    path = "inferenceservices/smollm2-135m.yaml"
    good, before, tip = fleet.read(path), pids(fleet), fleet.tip()
    pushed = fleet.push({path: good.replace("minReplicas: 2", "minReplicas: two")})
    assert pushed.returncode != 0
    assert f"{path}:" in pushed.stderr
    assert 'spec.predictor.minReplicas: found "two"; allowed: a whole number' in pushed.stderr
    assert (fleet.tip(), pids(fleet)) == (tip, before)
    assert fleet.shoal("status").returncode == 0


@pytest.mark.soak
def test_another_number_of_replicas_adds_and_drains(fleet: Fleet) -> None:
    before = pids(fleet)
    assert fleet.shoal("up", "--engine", "sim", "--replicas", "3").returncode == 0
    wait_until("the registry to have heard the third", lambda: len(fleet.replicas()) == 3, 60)
    assert fleet.shoal("up", "--engine", "sim", "--replicas", "2").returncode == 0
    assert pids(fleet) == before


def test_a_killed_controller_leaves_the_fleet_serving_and_the_next_one_adopts_it(fleet: Fleet) -> None:
    before = pids(fleet)
    os.kill(controller_pid(fleet), signal.SIGKILL)
    assert fleet.shoal("chat", "acme/support-bot", "--once", "hi").returncode == 0
    status = fleet.shoal("status")
    assert status.returncode == 1
    assert "these processes still run" in status.stdout
    assert fleet.shoal("up", "--engine", "sim", "--replicas", "2").returncode == 0
    assert pids(fleet) == before


@pytest.mark.drill
@pytest.mark.soak
@pytest.mark.parametrize("after_s", [0.0, 0.5, 1.5, 3.0])
def test_killed_at_any_point_of_its_start_the_next_up_recovers(tmp_path: Path, after_s: float) -> None:
    """`shoal up` and the controller get SIGKILL; the next `up` adopts or ends the processes that they had started.

    In the end `shoal down` leaves nothing, without a controller as well.
    """
    with running_fleet(tmp_path / "state", "sim", replicas=1) as fleet:
        assert fleet.shoal("down").returncode == 0
        up = subprocess.Popen([*SHOAL, "up", "--engine", "sim", "--replicas", "1"], env=fleet.environment, cwd=PROJECT,
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
        wait_until("a controller", (fleet.state_dir / "run" / "controller.sock").exists, 120)
        time.sleep(after_s)
        controller = [int(line.split()[0]) for line in processes_of(fleet.state_dir) if "functions.controller" in line]
        for pid in (up.pid, *controller):
            with contextlib.suppress(ProcessLookupError):  # a short-lived process may have ended
                os.kill(pid, signal.SIGKILL)
        up.wait()
        again = fleet.shoal("up", "--engine", "sim", "--replicas", "1")
        assert again.returncode == 0, again.stdout + again.stderr
        ours = [line for line in processes_of(fleet.state_dir) if "functions.engines.sim" in line]
        assert len(ours) == 1, ours
        os.kill(controller_pid(fleet), signal.SIGKILL)
        down = fleet.shoal("down")
        assert down.returncode == 0
        assert "there was no controller" in down.stdout
        assert processes_of(fleet.state_dir) == []
        assert fleet.shoal("down").returncode == 0


def test_a_taken_port_is_said_before_anything_starts(tmp_path: Path) -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        environment = os.environ | {
            "SHOAL_STATE_DIR": str(tmp_path / "state"),
            "SHOAL_PROJECT_DIR": str(PROJECT),
            "SHOAL_PORT_GATEWAY": str(port),
        }
        up = subprocess.run(
            [*SHOAL, "up", "--engine", "sim"], env=environment, cwd=PROJECT, capture_output=True, text=True,
            timeout=300, check=False,
        )  # fmt: skip
    assert up.returncode == 1
    assert f"{port} for gateway (https): held by process {os.getpid()}" in up.stderr
    assert "SHOAL_PORT_GATEWAY" in up.stderr
    assert processes_of(tmp_path / "state") == []


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
