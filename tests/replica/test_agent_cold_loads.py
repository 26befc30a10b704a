"""Cold adapters on request: simultaneous requests cost one load, refusals have a reason, draining frees slots."""

import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from functions.api.ids import EngineName
from functions.artifacts.publish import publish_directory
from functions.artifacts.s3 import S3Store
from functions.fleet.heartbeat import to_view
from tests.artifacts.adapter_files import make_adapter
from tests.replica.cold_rig import agent_for, ask_at_once, complete, installed, metric, names_of, publish_many
from tests.replica.conftest import BusProbe
from tests.replica.processes import AgentProcess, Engine, wait_for
from tests.replica.snapshots import SUPPORT_BOT, name_of
from tests.telemetry.collectors import attributes, collector

pytestmark = [pytest.mark.servers, pytest.mark.timeout(400)]  # several processes, each of which may be slow to start


def ready(agent: AgentProcess, engine: Engine, adapters: int) -> None:
    agent.wait_until_ready()
    wait_for(lambda: len(engine.adapters()) == adapters, f"{adapters} are loaded ahead")


def test_a_cold_adapter_is_loaded_on_request_and_the_least_used_makes_room(
    store: S3Store, engine: Engine, bus: BusProbe, tmp_path: Path
) -> None:
    digests = publish_many(store, tmp_path, 6)
    names = names_of(digests)
    # The annotation says 8 slots, the engine's arguments in the snapshot 4: the arguments win, with a warning.
    with collector() as taken, ExitStack() as stack:
        made = agent_for(
            digests, store, tmp_path, engine, bus.url, max_adapters=4, MAX_ADAPTERS="8", OTLP_ENDPOINT=taken.url
        )
        agent = stack.enter_context(made.run())
        ready(agent, engine, 3)
        warning = "max_adapters is set to 8, but the engine's arguments set 4, which is used"
        assert agent.log.read_text().count(warning) == 1
        cold = names[5]
        heartbeat = bus.wait_for_beat(
            lambda heartbeat: bool(heartbeat.disk_bloom) and heartbeat.adapter_room == 1, "a full heartbeat"
        )
        assert (heartbeat.peer_port, heartbeat.reason) == (agent.peer_port, "")
        assert agent.load(cold) == (200, {"state": "loaded", "tier": "s3"})
        assert cold in engine.adapters()
        assert complete(engine, cold) == 200
        assert agent.load(cold) == (200, {"state": "loaded", "tier": "host"})
        wait_for(lambda: len(engine.adapters()) == 3, "one of the idle left")
        gone = set(names[:3]) - set(engine.adapters())
        assert agent.load(gone.pop())[1]["tier"] == "disk", "its files stayed"
        heartbeat = wait_for(
            lambda: (heartbeat := bus.last()) and cold in heartbeat.adapters and heartbeat, "it is advertised"
        )
        view = to_view(heartbeat)
        wait_for(lambda: bus.last() and to_view(bus.last()).has_on_disk(cold), "and told to be on the disk")  # type: ignore[arg-type]
        assert not view.has_on_disk(names[4]), "never fetched"
        assert metric(agent, 'shoal_adapter_loads_total{tier="s3"}') == 4
        assert metric(agent, 'shoal_adapter_loads_total{tier="disk"}') == 1
        assert metric(agent, 'shoal_adapter_cold_loads_total{answer="loaded"}') == 3
        wait_for(lambda: len(taken.spans()) >= 5, "each load is a span")
        told = [attributes(span) for span in taken.spans()]
        assert next(each["shoal.adapter"] for each in told if each["shoal.urgent"] == "yes") == cold
        assert sorted(each["shoal.tier"] for each in told) == ["disk", "s3", "s3", "s3", "s3"]


def test_fifty_simultaneous_requests_cost_one_load(
    store: S3Store, engine: Engine, bus: BusProbe, tmp_path: Path
) -> None:
    digests = publish_many(store, tmp_path, 6, first=10)
    with agent_for(digests, store, tmp_path, engine, bus.url, MAX_ADAPTERS="4").run() as agent:
        ready(agent, engine, 3)
        answers = ask_at_once(agent, [names_of(digests)[5]] * 50)
        assert {status for status, _ in answers} == {200}
        assert metric(agent, 'shoal_adapter_loads_total{tier="s3"}') == 4, "three ahead, and one for the fifty"
        assert len(installed(tmp_path)) == 4


@pytest.mark.soak
def test_more_wants_than_room_are_served_in_turn_as_the_idle_leave(
    store: S3Store, engine: Engine, bus: BusProbe, tmp_path: Path
) -> None:
    digests = publish_many(store, tmp_path, 8, first=20)
    names = names_of(digests)
    with agent_for(digests, store, tmp_path, engine, bus.url, MAX_ADAPTERS="4").run() as agent:
        ready(agent, engine, 3)
        answers = ask_at_once(agent, names[3:7])
        assert [status for status, _ in answers] == [200] * 4
        assert len(engine.adapters()) <= 4


@pytest.mark.soak
def test_no_room_is_answered_at_once_if_all_adapters_are_busy(
    store: S3Store, engine: Engine, bus: BusProbe, tmp_path: Path
) -> None:
    digests = publish_many(store, tmp_path, 3, first=30)
    names = names_of(digests)
    settings = {"MAX_ADAPTERS": "2", "IDLE_PROBE_INTERVAL_S": "600"}  # only the test's own requests run
    with agent_for(digests, store, tmp_path, engine, bus.url, **settings).run() as agent:
        ready(agent, engine, 2)
        engine.fault(slow_factor=100)  # three minutes each, until the engine is fast again
        running = [threading.Thread(target=complete, args=(engine, name, 200)) for name in engine.adapters()]
        for thread in running:
            thread.start()
        wait_for(lambda: (heartbeat := bus.last()) and heartbeat.running == 2, "both run")
        cold = next(name for name in names if name not in engine.adapters())
        status, told = agent.load(cold)
        assert (status, "all 2 adapters of this replica are busy" in told["reason"]) == (409, True)
        engine.fault(slow_factor=1)
        for thread in running:
            thread.join()
        wait_for(lambda: agent.load(cold)[0] == 200, "served once they are idle")


def test_failed_load_has_a_reason(store: S3Store, engine: Engine, bus: BusProbe, tmp_path: Path) -> None:
    digests = publish_many(store, tmp_path, 2, first=40)
    source = make_adapter(tmp_path / "dora", use_dora=True)
    digests[SUPPORT_BOT] = publish_directory(store, source, "s3://shoal-models/acme/dora/v1", replace=True)
    bad = name_of(digests[SUPPORT_BOT])
    with agent_for(digests, store, tmp_path, engine, bus.url, MAX_ADAPTERS="2").run() as agent:
        ready(agent, engine, 2)
        answers: list[tuple[int, dict[str, Any]]] = []

        def refused() -> bool:  # once there is a free slot and the engine is not slowed down by the machine
            answers.append(agent.load(bad))
            return answers[-1][0] == 422

        wait_for(refused, "it is refused for good")
        assert "DoRA" in answers[-1][1]["reason"]
        assert {status for status, _ in answers} <= {409, 422, 503, 504}, answers
        heartbeat = wait_for(
            lambda: (heartbeat := bus.last()) and heartbeat.adapter_failures and heartbeat, "the heartbeat names it"
        )
        assert "DoRA" in heartbeat.adapter_failures[bad]
        assert agent.load("acme/nobody@sha256:0123456789abcdef")[0] == 404
        assert agent.load("smollm2-135m")[0] == 404
        assert agent.load(bad, token="wrong")[0] == 401


@pytest.mark.soak
def test_a_load_that_takes_longer_than_the_caller_waits_goes_on(
    store: S3Store, engine: Engine, bus: BusProbe, tmp_path: Path
) -> None:
    digests = publish_many(store, tmp_path, 2, first=50)
    with agent_for(digests, store, tmp_path, engine, bus.url, MAX_ADAPTERS="1").run() as agent:
        ready(agent, engine, 1)
        cold = next(name for name in names_of(digests) if name not in engine.adapters())
        status, told = agent.load(cold, wait_s=0.2)  # the other adapter is unloaded first, which takes three seconds
        assert (status, "not loaded within 0.2 s" in told["reason"]) == (504, True)
        assert agent.load(cold)[0] == 200
        assert metric(agent, 'shoal_adapter_loads_total{tier="s3"}') == 2


@pytest.mark.soak
def test_a_replica_that_is_not_ready_loads_nothing(store: S3Store, bus: BusProbe, tmp_path: Path) -> None:
    digests = publish_many(store, tmp_path, 1, first=60)
    engine = Engine(tmp_path)
    with agent_for(digests, store, tmp_path, engine, bus.url).run() as agent:
        bus.wait_for_phase("starting")
        assert agent.load(names_of(digests)[0])[0] == 503
        with engine.run():
            agent.wait_until_ready()
            agent.ask("/drain", "POST")
            status, told = agent.load(EngineName("acme/other@sha256:0123456789abcdef"))
            assert (status, "draining" in told["reason"]) == (503, True)
