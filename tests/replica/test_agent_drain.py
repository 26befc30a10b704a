"""Drain: announced at once, running requests finish, and the last heartbeat deregisters the replica."""

import json
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.replica.conftest import BusProbe
from tests.replica.processes import POOL, AgentProcess, Engine, http, wait_for

pytestmark = [pytest.mark.servers, pytest.mark.timeout(400)]  # several processes, each of which may be slow to start
NO_PROBES = {"IDLE_PROBE_INTERVAL_S": "600"}  # only the test's own requests run


def start_request(engine: Engine) -> tuple[threading.Thread, list[Any]]:
    """Start a completion of three minutes, or less once the engine is fast again; return thread and answer."""
    answer: list[Any] = []

    def send_request() -> None:
        body = {"model": POOL, "prompt": "take your time", "max_tokens": 200, "ignore_eos": True}
        answer.extend(http("POST", f"{engine.url}/v1/completions", body, 400.0))

    engine.fault(slow_factor=100)
    thread = threading.Thread(target=send_request)
    thread.start()
    return thread, answer


def test_sigterm_waits_for_running_requests_and_deregisters(engine: Engine, bus: BusProbe, tmp_path: Path) -> None:
    with AgentProcess(tmp_path, engine, bus.url, settings=NO_PROBES).run() as agent:
        assert agent.running is not None
        bus.wait_for_phase("ready")
        request, answer = start_request(engine)
        wait_for(lambda: (heartbeat := bus.last()) and heartbeat.running == 1, "the request runs")
        agent.running.send_signal(signal.SIGTERM)
        wait_for(
            lambda: sum(heartbeat.phase == "draining" for _, heartbeat in bus.poll()) >= 5, "it waits for what runs"
        )
        assert agent.ask("/readyz")[0] == 503
        assert agent.running.poll() is None
        engine.fault(slow_factor=1)
        request.join()
        assert answer[0] == 200
        assert json.loads(answer[1])["usage"]["completion_tokens"] == 200
        assert agent.running.wait(60) == 0  # well below the maximum of ten minutes
        assert "requests left in the engine" not in agent.log.read_text()
        goodbye = bus.wait_for_phase("dead")
        assert goodbye.reason == "the agent has stopped"


def test_an_idle_replica_leaves_within_seconds(engine: Engine, bus: BusProbe, tmp_path: Path) -> None:
    with AgentProcess(tmp_path, engine, bus.url).run() as agent:
        assert agent.running is not None
        bus.wait_for_phase("ready")
        agent.running.send_signal(signal.SIGTERM)
        assert agent.running.wait(60) == 0


@pytest.mark.soak
def test_the_timeout_ends_a_drain_that_does_not_finish(engine: Engine, bus: BusProbe, tmp_path: Path) -> None:
    with AgentProcess(tmp_path, engine, bus.url, settings={**NO_PROBES, "DRAIN_TIMEOUT_S": "3"}).run() as agent:
        assert agent.running is not None
        bus.wait_for_phase("ready")
        request, _ = start_request(engine)
        wait_for(lambda: (heartbeat := bus.last()) and heartbeat.running == 1, "the request runs")
        asked_s = time.monotonic()
        agent.running.send_signal(signal.SIGTERM)
        assert agent.running.wait(60) == 0
        assert time.monotonic() - asked_s > 2.5
        assert "requests left in the engine" in agent.log.read_text()
        engine.fault(slow_factor=1)
        request.join()


@pytest.mark.soak
def test_a_second_sigterm_does_not_wait(engine: Engine, bus: BusProbe, tmp_path: Path) -> None:
    with AgentProcess(tmp_path, engine, bus.url, settings=NO_PROBES).run() as agent:
        assert agent.running is not None
        bus.wait_for_phase("ready")
        request, _ = start_request(engine)
        wait_for(lambda: (heartbeat := bus.last()) and heartbeat.running == 1, "the request runs")
        agent.running.send_signal(signal.SIGTERM)
        bus.wait_for_phase("draining")
        agent.running.send_signal(signal.SIGTERM)
        assert agent.running.wait(60) == 0
        assert "requests left in the engine" in agent.log.read_text()
        engine.fault(slow_factor=1)
        request.join()


def test_post_drain_announces_and_answers_when_empty(engine: Engine, bus: BusProbe, tmp_path: Path) -> None:
    with AgentProcess(tmp_path, engine, bus.url).run() as agent:
        bus.wait_for_phase("ready")
        status, answer = agent.ask("/drain", "POST")
        assert (status, answer["drained"]) == (202, False)
        bus.wait_for_phase("draining")
        status, content = http("POST", f"{agent.url}/drain?wait_s=60", timeout_s=90)
        assert (status, json.loads(content)) == (200, {"drained": True, "outstanding": 0})
        assert http("POST", f"{agent.url}/drain?wait_s=nan")[0] == 422
        assert agent.running is not None
        assert agent.running.poll() is None
