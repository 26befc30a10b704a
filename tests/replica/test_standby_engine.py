"""A warm replica with a simulated engine that sleeps: the agent's requests and their effects."""

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from functions.artifacts.s3 import S3Store
from functions.decisions.health.engine import HealthPolicy
from functions.engines.client import EngineClient
from functions.engines.sim.parts import EngineParts
from functions.fleet.tasks import Supervised
from functions.replica.heartbeat_loop import compose
from functions.replica.monitor import EngineProber, Monitor
from functions.replica.standby import SETTLED_S, Standby
from functions.replica.status import AgentStatus
from functions.replica.warm_up import WarmUp
from tests.engines.servers import serving
from tests.replica.conftest import BusProbe
from tests.replica.processes import Engine, http, wait_for
from tests.replica.snapshots import SUPPORT_BOT, keep, make_snapshot, name_of
from tests.replica.statuses import Clock, make_status
from tests.replica.test_agent_adapters import PIRATE, agent_with, publish

pytestmark = pytest.mark.servers

DEV = {"VLLM_SERVER_DEV_MODE": "1"}
PROBE_TIMEOUT_S = 600.0  # real time, longer than the test
CHAT = {"messages": [{"role": "user", "content": "one two three"}]}


class Agent:
    """Standby and monitor beside an engine, on a test clock."""

    def __init__(self, parts: EngineParts, server: httpx.AsyncClient, status: AgentStatus, clock: Clock) -> None:
        self.parts, self.server, self.status, self.clock = parts, server, status, clock
        self.client = EngineClient(server, "", timeout_s=60.0)
        self.tasks = Supervised()
        self.prober = EngineProber(self.client, parts.model.names[0], PROBE_TIMEOUT_S, clock)
        self.monitor = Monitor(
            status, self.client, self.prober, HealthPolicy(), self.tasks, warm_up=WarmUp(self.client, "", status, 0)
        )
        self.standby = Standby(status, self.client, lambda: None, may_sleep=True)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(60.0):
            while not condition():
                self.clock.now_s += 0.5
                await self.monitor.tick()
                await asyncio.sleep(0.01)

    @property
    def heartbeat(self) -> tuple[str, bool]:
        heartbeat = compose(self.status, sequence=1, sent_unix_s=1.0)
        return heartbeat.phase, heartbeat.asleep


@asynccontextmanager
async def agent(*flags: str, phase: str = "ready", standby: bool = True, dev: bool = True) -> AsyncIterator[Agent]:
    clock = Clock()
    async with serving("--enable-sleep-mode", *flags, **(DEV if dev else {})) as (parts, server, _):
        made = Agent(parts, server, make_status(phase, clock, standby=standby), clock)
        running = asyncio.get_running_loop().create_task(made.standby.run())
        try:
            yield made
        finally:
            running.cancel()
            await asyncio.wait([running])
            await made.tasks.close()


async def test_warm_engine_sleeps_when_settled_and_serves_after_waking() -> None:
    async with agent() as warm:
        began_s = warm.clock.now_s
        await warm.until(lambda: warm.heartbeat == ("warm", True))
        assert warm.clock.now_s - began_s >= SETTLED_S
        assert warm.parts.engine.slumber.state == "weights_offloaded"
        await warm.standby.change_role(standby=False)
        assert warm.heartbeat == ("ready", False)
        answer = (await warm.server.post("/v1/chat/completions", json=CHAT)).json()
        assert answer["choices"][0]["message"]["content"] == "one two three"


async def test_an_engine_whose_routes_are_closed_stays_awake_and_warm(caplog: pytest.LogCaptureFixture) -> None:
    async with agent(dev=False) as warm:
        await warm.until(lambda: "VLLM_SERVER_DEV_MODE=1 opens its routes" in caplog.text)
        assert warm.heartbeat == ("warm", False)


@pytest.mark.soak
async def test_restarted_agent_reports_a_sleeping_engine_as_healthy() -> None:
    async with agent(phase="starting") as warm:
        await warm.client.sleep()
        await warm.until(lambda: warm.heartbeat == ("warm", True))
        assert warm.prober.answered == 0, "it answers no probe"
        began_s = warm.clock.now_s
        await warm.until(lambda: warm.clock.now_s - began_s > 60.0)
        assert warm.heartbeat == ("warm", True) and warm.parts.engine.slumber.level == 1


async def test_replica_promoted_without_an_agent_is_woken_before_serving() -> None:
    async with agent(phase="starting", standby=False) as promoted:
        await promoted.client.sleep()
        await promoted.until(lambda: promoted.status.asleep)
        assert promoted.heartbeat == ("starting", False)
        await promoted.until(lambda: promoted.heartbeat == ("ready", False))
        assert promoted.parts.engine.slumber.level is None


async def test_probe_pending_in_a_sleeping_engine_is_no_failure() -> None:
    async with agent() as warm:
        await warm.client.sleep()
        warm.prober.mark_pending()
        warm.tasks.once("probe", warm.prober.run())
        await warm.until(lambda: warm.status.asleep)
        began_s = warm.clock.now_s
        await warm.until(lambda: warm.clock.now_s - began_s > 60.0)
        assert warm.heartbeat == ("warm", True) and warm.prober.newest.state == "pending"
        await warm.standby.change_role(standby=False)
        await warm.until(lambda: warm.prober.newest.state == "answered")
        assert warm.heartbeat == ("ready", False)


@pytest.mark.soak
def test_sleeping_engine_loads_no_adapter_until_woken(
    store: S3Store, bus: BusProbe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_SERVER_DEV_MODE", "1")
    first, second = publish(store, tmp_path, 61), publish(store, tmp_path, 62, PIRATE)
    (tmp_path / "standby").touch()
    settings = {"STANDBY_FILE": str(tmp_path / "standby"), "SLEEP_WHEN_WARM": "true"}
    with Engine(tmp_path, arguments=("--enable-sleep-mode",)).run() as engine:
        agent = agent_with(store, tmp_path, engine, bus, **settings)
        keep(agent.snapshot_cache_file, make_snapshot({SUPPORT_BOT: {"v1": first}}))
        with agent.run() as running:
            bus.wait_for_beat(lambda heartbeat: heartbeat.asleep, "it sleeps")
            assert running.running is not None
            running.running.send_signal(signal.SIGKILL)
        bus.heartbeats.clear()
        keep(agent.snapshot_cache_file, make_snapshot({SUPPORT_BOT: {"v1": first}, PIRATE: {"v1": second}}, epoch=2))
        with agent.run():
            heartbeat = bus.wait_for_beat(
                lambda heartbeat: heartbeat.asleep and heartbeat.snapshot_epoch == 2, "its successor finds it so"
            )
            assert heartbeat.phase == "warm"
            agent.wait_until_ready()
            assert engine.adapters() == [name_of(first)]
            url = f"http://127.0.0.1:{agent.peer_port}/standing"
            assert http("POST", url, {"standby": False}, token="internal-token")[0] == 200
            both = sorted([name_of(first), name_of(second, PIRATE)])
            wait_for(lambda: engine.adapters() == both, "the other is loaded when it is awake")
            bus.wait_for_beat(
                lambda heartbeat: heartbeat.phase == "ready" and sorted(heartbeat.adapters) == both, "and told"
            )
