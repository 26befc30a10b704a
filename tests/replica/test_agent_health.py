"""The agent as a process beside a simulated engine: heartbeats when the engine hangs, dies and recovers."""

import itertools
import signal
import socket
import threading
import time
from pathlib import Path

import pytest

from functions.api.snapshot import Task
from functions.fleet.heartbeat import Heartbeat
from tests.ports import free_ports
from tests.replica.conftest import BusProbe, valkey_server
from tests.replica.processes import POOL, AgentProcess, Engine, http, wait_for
from tests.replica.snapshots import keep, make_snapshot
from tests.soak import sampled

pytestmark = [pytest.mark.servers, pytest.mark.timeout(400)]  # several processes, each of which may be slow to start

# A third of the defaults, so that tests take a third of the time; the ratios stay the same.
QUICK = {"SILENT_AFTER_S": "2", "STALLED_AFTER_S": "2", "IDLE_PROBE_INTERVAL_S": "1", "PROBE_TIMEOUT_S": "3"}

LATE_S = 2.5  # one heartbeat a second on a busy machine; an agent that waits for its engine would miss 3 s

NEVER_S = "600"  # disables the hang check that a test does not cover, since a slow machine could trigger it


def quick_agent(directory: Path, engine: Engine, bus: BusProbe, **settings: str) -> AgentProcess:
    return AgentProcess(directory, engine, bus.url, settings={**QUICK, **settings})


def gaps_s(heartbeats: list[tuple[float, Heartbeat]]) -> list[float]:
    return [after - before for (before, _), (after, _) in itertools.pairwise(heartbeats)]


def steady_beats(bus: BusProbe, seconds: float) -> list[Heartbeat]:
    """Return all heartbeats received until their rate was steady for `seconds`.

    A machine that stalls for seconds gets further tries; an agent that waits for its engine is late in all of them.
    """
    bus.forget()
    give_up_s, first = time.monotonic() + 60, 0
    while True:
        gaps = gaps_s(bus.poll(seconds)[first:])
        if seconds - 2 <= len(gaps) <= seconds + 1 and max(gaps) < LATE_S:
            return [heartbeat for _, heartbeat in bus.heartbeats]
        assert time.monotonic() < give_up_s, gaps
        first = len(bus.heartbeats)


def test_beats_at_1_hz_with_the_engine_ready(engine: Engine, bus: BusProbe, tmp_path: Path) -> None:
    with AgentProcess(tmp_path, engine, bus.url).run() as agent:
        ready = bus.wait_for_beat(
            lambda heartbeat: heartbeat.phase == "ready" and heartbeat.engine_version != "", "ready, as what"
        )
        assert (ready.replica_id, ready.port, ready.engine_version) == ("r0", engine.port, "0.32.0")
        assert ready.kv_blocks_total > 0
        sequences = [heartbeat.sequence for heartbeat in steady_beats(bus, 5.0)]
        assert sequences == list(range(sequences[0], sequences[0] + len(sequences)))
        unknown = (503, "no snapshot yet: adapters are unknown")
        wait_for(lambda: ((told := agent.ask("/readyz"))[0], told[1]["not_ready"]) == unknown, unknown[1])


@pytest.mark.parametrize("task", sampled(["embed", "classify", "score"], keep=["classify"]))
def test_a_model_that_makes_no_tokens_is_ready_once_it_answers_its_own_route(
    bus: BusProbe, tmp_path: Path, task: Task
) -> None:
    """Such a model has no /v1/completions and must not be reported dead; if it hangs, it is still found hung."""
    engine = Engine(tmp_path, arguments=("--runner", "pooling", "--sim-task", task))
    agent = quick_agent(tmp_path, engine, bus)
    keep(agent.snapshot_cache_file, make_snapshot({}, task=task))
    with engine.run(), agent.run():
        agent.wait_until_ready()
        engine.fault(hang=True)
        bus.wait_for_phase("hung")


HUNG = [("hang", "STALLED_AFTER_S"), ("freeze", "SILENT_AFTER_S")]


@pytest.mark.parametrize(("fault", "other"), sampled(HUNG, keep=HUNG[:1], each_is_several=True))
def test_a_hung_engine_is_named_within_seconds_and_returns_after_a_probe(
    engine: Engine, bus: BusProbe, tmp_path: Path, fault: str, other: str
) -> None:
    with quick_agent(tmp_path, engine, bus, **{other: NEVER_S}).run():
        bus.wait_for_phase("ready")
        engine.fault(**{fault: True})
        hung = bus.wait_for_phase("hung")
        assert ("no answer for" if fault == "hang" else "no token") in hung.reason
        assert {heartbeat.phase for heartbeat in steady_beats(bus, 4.0)} == {"hung"}
        engine.fault(**{fault: False})
        bus.wait_for_phase("ready")


@pytest.mark.soak
def test_a_stopped_engine_is_hung_and_ready_again_when_it_continues(
    engine: Engine, bus: BusProbe, tmp_path: Path
) -> None:
    with quick_agent(tmp_path, engine, bus).run() as agent:
        bus.wait_for_phase("ready")
        engine.signal(signal.SIGSTOP)
        bus.wait_for_phase("hung")
        assert agent.ask("/engine/livez")[0] == 200
        engine.signal(signal.SIGCONT)
        bus.wait_for_phase("ready")


@pytest.mark.soak
def test_an_engine_hung_for_good_fails_the_liveness_probe_until_it_answers(
    engine: Engine, bus: BusProbe, tmp_path: Path
) -> None:
    with quick_agent(tmp_path, engine, bus, SILENT_AFTER_S=NEVER_S, CONDEMN_HUNG_AFTER_S="2").run() as agent:
        bus.wait_for_phase("ready")
        engine.fault(freeze=True)
        status, verdict = wait_for(
            lambda: answer if (answer := agent.ask("/engine/livez"))[0] == 503 else None, "liveness fails"
        )
        assert (status, verdict["phase"]) == (503, "hung")
        assert "no token" in verdict["condemned"]
        assert agent.ask("/healthz")[0] == 200
        engine.fault(freeze=False)
        wait_for(lambda: agent.ask("/engine/livez")[0] == 200, "liveness passes")


@pytest.mark.soak
def test_a_slow_engine_stays_ready(engine: Engine, bus: BusProbe, tmp_path: Path) -> None:
    settings = {"SILENT_AFTER_S": NEVER_S, "STALLED_AFTER_S": "5", "IDLE_PROBE_INTERVAL_S": NEVER_S}
    with quick_agent(tmp_path, engine, bus, **settings).run():
        bus.wait_for_phase("ready")
        engine.fault(slow_factor=50)  # two or three tokens a second
        body = {"model": POOL, "prompt": "a slow one", "max_tokens": 200, "ignore_eos": True}
        slow = threading.Thread(target=http, args=("POST", f"{engine.url}/v1/completions", body, 400.0))
        slow.start()
        wait_for(lambda: (heartbeat := bus.last()) and heartbeat.running, "the request runs")
        bus.forget()
        bus.poll(8.0)
        assert {heartbeat.phase for _, heartbeat in bus.heartbeats} == {"ready"}
        engine.fault(slow_factor=1)
        slow.join()


def test_a_killed_engine_is_dead_and_its_successor_ready(bus: BusProbe, tmp_path: Path) -> None:
    engine = Engine(tmp_path)
    agent = quick_agent(tmp_path, engine, bus)
    with agent.run():
        with engine.run():
            bus.wait_for_phase("ready")
            engine.signal(signal.SIGKILL)
            dead = bus.wait_for_phase("dead")
            # The agent reports the evidence; 15 s of silence are not needed.
            assert (dead.reason, dead.adapters, dead.running) == ("connection refused: no process is listening", (), 0)
            assert agent.ask("/engine/livez")[0] == 200  # or it would kill the next engine
        with engine.run():
            bus.wait_for_phase("ready")


def test_a_dead_core_behind_a_living_server_is_dead(engine: Engine, bus: BusProbe, tmp_path: Path) -> None:
    with quick_agent(tmp_path, engine, bus).run():
        bus.wait_for_phase("ready")
        engine.fault(engine_dead=True)
        bus.wait_for_phase("dead")


def test_a_bus_that_comes_late_gets_its_beats(engine: Engine, tmp_path: Path) -> None:
    port = free_ports(1)[0]
    agent = AgentProcess(tmp_path, engine, f"valkey://127.0.0.1:{port}/0")
    with agent.run():
        wait_for(lambda: agent.phase() == "ready", "the agent works without a bus")
        with valkey_server(tmp_path, port) as url:
            late = BusProbe(url)
            late.wait_for_phase("ready")
            late.close()
        wait_for(lambda: "heartbeats do not reach the bus" in agent.log.read_text(), "the loss is logged")
        assert agent.ask("/healthz")[0] == 200


def test_metrics_show_phase_and_beats(engine: Engine, bus: BusProbe, tmp_path: Path) -> None:
    with AgentProcess(tmp_path, engine, bus.url).run() as agent:
        bus.wait_for_phase("ready")

        def pages() -> str | None:
            page = http("GET", f"{agent.url}/metrics")[1].decode()
            return page if 'shoal_replica_state{replica="r0",state="ready"} 1.0' in page else None

        page = wait_for(pages, "the page says so too")
        assert 'shoal_replica_state{replica="r0",state="hung"} 0.0' in page
        assert "shoal_heartbeats_total" in page


def test_a_port_that_is_taken_is_named(bus: BusProbe, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with AgentProcess(tmp_path, Engine(tmp_path), bus.url, port=taken.getsockname()[1]).run() as agent:
            assert agent.running is not None
            assert agent.running.wait(60) == 1
            assert "SHOAL_REPLICA_AGENT_PORT" in agent.log.read_text()


def test_wrong_settings_are_named(tmp_path: Path) -> None:
    agent = AgentProcess(tmp_path, Engine(tmp_path), "valkey://127.0.0.1:9/0", settings={"REPLICA_ID": "no spaces"})
    with agent.run():
        assert agent.running is not None
        assert agent.running.wait(60) == 1
        assert "replica_id" in agent.log.read_text()
