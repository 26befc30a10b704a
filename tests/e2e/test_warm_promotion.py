"""A warm replica serves right after the decision: no process starts, no request is lost, and another becomes warm.

The tests use simulated engines and the real one. They print the delay (`-s`) but do not judge a machine's speed.
"""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import pytest

from tests.e2e.promotions import (
    ALWAYS,
    LIMIT_S,
    NEVER,
    POOL,
    Promotion,
    decide,
    loaded,
    phases,
    project,
    promote,
    until,
)
from tests.fleets import Fleet, running_fleet, wait_until

pytestmark = pytest.mark.soak

TRIALS = {"sim": 10, "vllm": int(os.environ.get("SHOAL_PROMOTION_TRIALS", "2"))}
CLIENTS = {"sim": 4, "vllm": 3}
ROOM = {"SHOAL_MAX_ENGINES": "3"}


@pytest.fixture(scope="module")
def sim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("warm")
    with running_fleet(folder / "state", "sim", replicas=None, project=project(folder / "project")) as fleet:
        yield fleet


@pytest.fixture
def vllm(tmp_path: Path) -> Iterator[Fleet]:
    model_dir = os.environ.get("SHOAL_BASE_MODEL_DIR", "")
    if not model_dir:
        pytest.skip("SHOAL_BASE_MODEL_DIR is not set: `make test` prepares engine and base model, and sets it")
    state = tmp_path / "state"
    (state / "models").mkdir(parents=True)
    (state / "models" / Path(model_dir).name).symlink_to(Path(model_dir).absolute())
    with running_fleet(state, "vllm", replicas=None, project=project(tmp_path / "project"), variables=ROOM) as fleet:
        yield fleet


def promoted(fleet: Fleet, engine: str, trials: int) -> list[Promotion]:
    with loaded(fleet, CLIENTS[engine]) as load:
        found = [promote(fleet, load) for _ in range(trials)]
        until(fleet, 1, 1)
    assert load.failures == []
    assert {answer.status for answer in load.answers} == {200}, "neither a promotion nor its reverse loses a request"
    for number, each in enumerate(found):
        print(f"{number}: eligible {each.eligible_s:.3f} s, first request {each.routed_s:.3f} s after the decision")
    eligible_s, routed_s = median(each.eligible_s for each in found), median(each.routed_s for each in found)
    print(f"median: eligible {eligible_s:.3f} s, first request {routed_s:.3f} s")
    return found


@pytest.mark.servers
@pytest.mark.timeout(1800)
def test_a_simulated_replica_is_promoted(sim: Fleet) -> None:
    assert {each.replica for each in promoted(sim, "sim", TRIALS["sim"])} <= {f"{POOL}-{n}" for n in range(3)}


@pytest.mark.engine
@pytest.mark.own_engines
@pytest.mark.timeout(3600)
def test_a_replica_with_the_real_engine_is_promoted(vllm: Fleet) -> None:
    assert len(promoted(vllm, "vllm", TRIALS["vllm"])) == TRIALS["vllm"]


@pytest.mark.servers
@pytest.mark.timeout(1800)
def test_a_warm_replica_is_not_routed_to_and_one_that_dies_is_replaced_warm(sim: Fleet) -> None:
    before = until(sim, 1, 1)
    warm = next(replica for replica, phase in before.items() if phase == "warm")
    agent = sim.pid("agent", warm)
    os.kill(agent, 9)
    with loaded(sim, 2) as load:
        wait_until("another agent", lambda: _pid(sim, f"agent-{warm}") not in (None, agent), LIMIT_S)
        assert until(sim, 1, 1)[warm] == "warm", "it is started again as what it was"
        asked = len(load.answers)
        wait_until("some answers", lambda: len(load.answers) > asked + 20, LIMIT_S)
    assert {answer.replica for answer in load.answers} == {replica for replica in before if replica != warm}


@pytest.mark.servers
@pytest.mark.timeout(1800)
def test_a_controller_that_is_killed_keeps_what_the_autoscaler_asked_for(sim: Fleet) -> None:
    until(sim, 1, 1)
    decide(sim, 2, ALWAYS)
    until(sim, 2, 1)
    served = {name: entry["pid"] for name, entry in sim.processes().items() if entry["role"] in ("engine", "agent")}
    os.kill(sim.status()["controller"]["pid"], 9)
    assert sim.shoal("up", "--engine", "sim", timeout_s=300).returncode == 0
    assert until(sim, 2, 1)
    assert served == {
        name: entry["pid"] for name, entry in sim.processes().items() if entry["role"] in ("engine", "agent")
    }
    decide(sim, 1, NEVER)
    until(sim, 1, 1)


@pytest.mark.servers
@pytest.mark.timeout(1800)
def test_the_operators_number_goes_before_the_autoscalers(sim: Fleet) -> None:
    until(sim, 1, 1)
    assert sim.shoal("up", "--engine", "sim", "--replicas", "2", timeout_s=300).returncode == 0
    assert set(until(sim, 2, 0).values()) == {"ready"}
    assert "--replicas 2 goes before" in sim.status()["scaling"][0]["held"]
    assert "--replicas 2 goes before" in sim.shoal("status").stdout.replace("\n", " ")
    assert sim.shoal("up", "--engine", "sim", timeout_s=300).returncode == 0
    until(sim, 1, 1)


@pytest.mark.servers
@pytest.mark.timeout(1800)
def test_suspended_nothing_is_scaled(sim: Fleet) -> None:
    before = until(sim, 1, 1)
    assert sim.shoal("suspend", "--reason", "a test").returncode == 0
    decide(sim, 2, ALWAYS)
    seen_s = time.monotonic() + 3.0  # three passes, since there is no event to wait for
    wait_until("three passes", lambda: time.monotonic() > seen_s, LIMIT_S)
    wait_until("all are heard of, as they were", lambda: phases(sim.status()) == before, LIMIT_S)
    assert sim.shoal("resume").returncode == 0
    until(sim, 2, 1)
    decide(sim, 1, NEVER)
    until(sim, 1, 1)


def _pid(fleet: Fleet, name: str) -> int | None:
    return fleet.processes().get(name, {}).get("pid")
