"""The monitor's other readings: engine version, work, new processes and the agent's own stalls."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import httpx
import pytest

from functions.decisions.health.engine import HealthPolicy
from functions.engines.client import EngineClient
from functions.fleet.tasks import Supervised
from functions.replica.monitor import EngineProber, Monitor
from functions.replica.status import AgentStatus
from functions.replica.warm_up import WarmUp
from tests.replica.statuses import EMPTY_PAGE, Clock, make_status

_READ = 'vllm:request_prefill_kv_computed_tokens_sum{engine="0"}'


@dataclass
class WellEngine:
    """Engine that answers every check; the test sets the answer of /version."""

    version: httpx.Response | httpx.HTTPError
    asked_for_version: int = 0
    probes: int = 0
    is_there: bool = True
    began_unix_s: float = 1.7e9
    read_tokens: int = 0
    while_asked: Callable[[], object] = lambda: None

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.while_asked()
        if not self.is_there:
            raise httpx.ConnectError("refused")
        if request.url.path == "/metrics":
            page = EMPTY_PAGE.replace(f"{_READ} 0", f"{_READ} {self.read_tokens}")
            return httpx.Response(200, text=f"{page}process_start_time_seconds {self.began_unix_s}\n")
        self.probes += request.url.path == "/v1/completions"
        if request.url.path != "/version":
            return httpx.Response(200, json={"choices": [{}]})
        self.asked_for_version += 1
        if isinstance(self.version, httpx.HTTPError):
            raise self.version
        return self.version


@dataclass
class Rig:
    engine: WellEngine
    clock: Clock
    status: AgentStatus
    prober: EngineProber
    monitor: Monitor
    greeted: list[float]

    async def tick(self) -> None:
        """Advance one second, answer a pending probe and run one check."""
        self.clock.now_s += 1.0
        self.prober.mark_pending()
        await self.prober.run()
        await self.monitor.tick()


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    engine, clock, tasks = WellEngine(httpx.ReadTimeout("busy")), Clock(), Supervised()
    status = make_status("starting", clock, engine_version="")
    async with httpx.AsyncClient(transport=httpx.MockTransport(engine)) as http:
        client = EngineClient(http, "http://engine")
        prober = EngineProber(client, "smollm2-135m", 1.0, clock)
        warm_up = WarmUp(client, "smollm2-135m", status, 0)
        greeted: list[float] = []
        monitor = Monitor(
            status, client, prober, HealthPolicy(), tasks,
            warm_up=warm_up, on_new_engine=lambda: greeted.append(clock.now_s),
        )  # fmt: skip
        yield Rig(engine, clock, status, prober, monitor, greeted)
        await tasks.close()


async def test_a_version_that_did_not_come_in_time_is_asked_for_again(rig: Rig) -> None:
    await rig.tick()
    assert (rig.status.health.phase, rig.status.engine_version) == ("ready", "")
    rig.engine.version = httpx.Response(200, json={"version": "0.32.0"})
    await rig.tick()
    assert rig.status.engine_version == "0.32.0"
    await rig.tick()
    assert rig.engine.asked_for_version == 2, "not again once it is known"


async def test_an_engine_that_has_no_version_is_not_asked_each_second(rig: Rig) -> None:
    rig.engine.version = httpx.Response(404)
    for _ in range(3):
        await rig.tick()
    assert (rig.status.health.phase, rig.engine.asked_for_version) == ("ready", 1)


async def test_prompt_between_two_checks_counts_as_work(rig: Rig) -> None:
    """A prefill replica's drain needs this: vLLM's gauges never show a prompt that one step has read."""
    await rig.tick()
    rig.engine.read_tokens += 20
    await rig.tick()
    assert rig.status.worked_s == 0.0, "a probe"
    rig.engine.read_tokens += 4096
    await rig.tick()
    read_s = rig.clock.now_s
    await rig.tick()
    assert rig.status.worked_s == read_s


@pytest.mark.parametrize("state", ["falling_asleep", "asleep"])
async def test_an_engine_that_computes_nothing_is_well_and_not_probed(rig: Rig, state: str) -> None:
    await rig.tick()
    rig.prober.mark_pending()  # the engine never answers this probe
    probes = rig.engine.probes
    setattr(rig.status, state, True)
    for _ in range(60):
        rig.clock.now_s += 1.0
        await rig.monitor.tick()
        assert (rig.status.health.phase, rig.status.condemned) == ("ready", "")
    await asyncio.sleep(0)
    assert rig.engine.probes == probes


@pytest.mark.parametrize("is_seen", [True, False], ids=["gone for a while", "between two looks"])
async def test_new_engine_process_is_reported_once(rig: Rig, is_seen: bool) -> None:
    """A fast restart is noticed too, for example by a drain that waits for the next process."""
    for _ in range(3):
        await rig.tick()
    assert len(rig.greeted) == 1
    rig.engine.is_there = not is_seen
    for _ in range(5):
        await rig.tick()
    assert len(rig.greeted) == 1
    rig.engine.is_there, rig.engine.began_unix_s = True, rig.engine.began_unix_s + 60
    for _ in range(5):
        await rig.tick()
    assert (rig.status.health.phase, len(rig.greeted)) == ("ready", 2)


async def test_stalled_agent_does_not_report_its_engine_as_silent(rig: Rig) -> None:
    """The checks' timers expire before answers are read after a stall; reporting `hung` would divert all requests."""
    await rig.tick()
    assert rig.status.health.phase == "ready"

    def stand_still() -> None:
        rig.clock.now_s += 3.0  # for each of two checks
        raise httpx.ReadTimeout("no answer")

    rig.engine.while_asked = stand_still
    rig.clock.now_s += 1.0
    await rig.monitor.tick()
    assert rig.status.phase()[0] == "ready"
    rig.engine.while_asked = lambda: None
    await rig.tick()
    assert rig.status.health.phase == "ready"


async def test_answers_sent_during_an_agent_stall_are_read() -> None:
    async def answer(request: httpx.Request) -> httpx.Response:
        time.sleep(0.3)  # real time of the event loop
        for _ in range(3):  # timers run before sockets are read
            await asyncio.sleep(0)
        return httpx.Response(200)

    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as http:
        await EngineClient(http, "http://engine", timeout_s=0.1).health()
