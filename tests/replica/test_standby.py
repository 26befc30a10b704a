"""Warm and ready replicas: gateways learn of a change at once, and a warm engine sleeps if it can."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from functions.decisions.health.engine_rates import EngineRates
from functions.engines.client import EngineClient
from functions.replica import standby
from functions.replica.heartbeat_loop import compose
from functions.replica.peer_app import make_peer_app, role_routes
from functions.replica.standby import SETTLED_S, Standby
from functions.replica.status import AgentStatus, EngineLoad
from tests.replica.statuses import Clock, make_status


class Engine:
    """The three routes of an engine with --enable-sleep-mode.

    `broken` paths answer 500; `mute` paths do their work, but the answer is lost with the given error.
    """

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.sleeps = False
        self.broken = False
        self.mute: dict[str, type[httpx.TransportError]] = {}
        self.on_sleep: Callable[[], None] = lambda: None

    def answer(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(f"{request.method} {request.url.raw_path.decode()}")
        if self.broken:
            return httpx.Response(500, json={"error": {"message": "no"}})
        if request.url.path != "/is_sleeping":
            self.sleeps = request.url.path == "/sleep"
        if request.url.path == "/sleep":
            self.on_sleep()
        if lost := self.mute.get(request.url.path):
            raise lost("no answer", request=request)
        return httpx.Response(200, json={"is_sleeping": self.sleeps})


class Replica:
    def __init__(self, *, may_sleep: bool = False, status: AgentStatus | None = None) -> None:
        self.engine = Engine()
        self.status = status or make_status()
        assert isinstance(self.status.clock, Clock)
        self.clock = self.status.clock
        self.heartbeats: list[str] = []
        client = EngineClient(httpx.AsyncClient(transport=httpx.MockTransport(self.engine.answer)), "http://engine")
        self.standby = Standby(self.status, client, self.record_notice, may_sleep=may_sleep)

    def record_notice(self) -> None:
        self.heartbeats.append(self.status.phase()[0])

    def pass_time(self) -> None:
        self.clock.now_s += SETTLED_S
        self.status.judged_s = self.clock.now_s

    async def until_asleep(self) -> None:
        task = asyncio.get_running_loop().create_task(self.standby.run())
        async with asyncio.timeout(30.0):
            while not self.status.asleep:
                self.pass_time()
                await asyncio.sleep(0.005)
        task.cancel()


async def test_standby_changes_are_reported_at_once() -> None:
    replica = Replica()
    await replica.standby.change_role(standby=True)
    await replica.standby.change_role(standby=True)
    await replica.standby.change_role(standby=False)
    assert replica.heartbeats == ["warm", "ready"], "what changes nothing is not told"
    assert replica.engine.asked == [], "an engine that cannot sleep is not asked"


async def test_rates_are_forgotten_on_a_standby_change() -> None:
    replica = Replica(status=make_status(rates=EngineRates(service_ms=9_000.0)))
    await replica.standby.change_role(standby=True)
    await replica.standby.change_role(standby=False)
    assert replica.status.rates == EngineRates()


def test_warm_replica_is_healthy_and_loads_no_cold_adapters() -> None:
    status = make_status(standby=True)
    assert status.phase() == ("warm", "loaded, without traffic")
    assert status.not_ready() == "", "its process is as it should be"
    heartbeat = compose(status, sequence=1, sent_unix_s=1.0)
    assert (heartbeat.phase, heartbeat.adapter_room) == ("warm", 0)


@pytest.mark.parametrize(
    ("phase", "draining"), [("hung", False), ("dead", False), ("starting", False), ("ready", True)]
)
def test_unhealthy_phases_outrank_warm(phase: str, draining: bool) -> None:
    status = make_status(phase, standby=True, draining=draining)
    assert status.phase()[0] == ("draining" if draining else phase)


def test_standby_file_decides_the_initial_role(tmp_path: Path) -> None:
    replica = Replica()
    replica.standby.read_standby_file(tmp_path / "standby")
    assert not replica.status.standby
    (tmp_path / "standby").touch()
    replica.standby.read_standby_file(tmp_path / "standby")
    assert replica.status.standby
    replica.standby.read_standby_file(None)
    assert not replica.status.standby


async def test_an_engine_that_can_sleeps_while_it_is_warm_and_is_woken_first() -> None:
    replica = Replica(may_sleep=True)
    await replica.standby.change_role(standby=True)
    await replica.until_asleep()
    assert replica.engine.sleeps
    assert replica.status.phase() == ("warm", "loaded and asleep, without traffic")
    await replica.standby.change_role(standby=False)
    assert not replica.engine.sleeps
    assert replica.engine.asked == ["GET /is_sleeping", "POST /sleep?level=1", "POST /wake_up"]


async def test_an_agent_that_is_started_again_finds_its_engine_asleep() -> None:
    replica = Replica(may_sleep=True, status=make_status(standby=True))
    replica.engine.sleeps = True
    await replica.until_asleep()
    assert replica.engine.asked == ["GET /is_sleeping"]


async def test_falling_asleep_is_set_until_the_engine_answers() -> None:
    replica = Replica(may_sleep=True, status=make_status(standby=True))
    seen: list[bool] = []
    replica.engine.on_sleep = lambda: seen.append(replica.status.falling_asleep)
    await replica.until_asleep()
    assert seen == [True] and not replica.status.falling_asleep


LOST = pytest.mark.parametrize("lost", [httpx.ReadTimeout, httpx.ReadError])


@LOST
async def test_an_engine_that_falls_asleep_without_an_answer_is_found_asleep(
    lost: type[httpx.TransportError], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standby, "LOOK_INTERVAL_S", 0.01)
    replica = Replica(may_sleep=True, status=make_status(standby=True))
    replica.engine.mute = {"/sleep": lost}
    await replica.until_asleep()
    assert replica.engine.asked == ["GET /is_sleeping", "POST /sleep?level=1", "GET /is_sleeping"]


@LOST
async def test_replica_stays_warm_until_the_sleep_state_is_known(lost: type[httpx.TransportError]) -> None:
    replica = Replica(may_sleep=True, status=make_status(standby=True))
    replica.engine.sleeps, replica.engine.mute = True, {"/is_sleeping": lost}
    assert (await post_standby(replica, b'{"standby": false}')).status_code == 503
    assert replica.status.phase()[0] == "warm"
    replica.engine.mute = {}
    assert (await post_standby(replica, b'{"standby": false}')).status_code == 200
    assert replica.status.phase()[0] == "ready" and not replica.engine.sleeps


@pytest.mark.parametrize(("phase", "asleep"), [("ready", True), ("starting", True), ("hung", True), ("dead", False)])
def test_sleep_state_is_reported_in_unhealthy_phases(phase: str, asleep: bool) -> None:
    status = make_status(phase, standby=True, asleep=True)
    assert compose(status, sequence=1, sent_unix_s=1.0).asleep == asleep


async def test_an_engine_without_the_routes_stays_awake() -> None:
    replica = Replica(may_sleep=True, status=make_status(standby=True))
    replica.engine.broken = True
    task = asyncio.get_running_loop().create_task(replica.standby.run())
    async with asyncio.timeout(30.0):
        while len(replica.engine.asked) < 2:
            replica.pass_time()
            await asyncio.sleep(0.005)
    await asyncio.sleep(0)
    task.cancel()
    assert not replica.status.asleep


async def test_a_busy_engine_is_not_put_to_sleep() -> None:
    replica = Replica(may_sleep=True, status=make_status(standby=True, load=EngineLoad(running=1)))
    task = asyncio.get_running_loop().create_task(replica.standby.run())
    async with asyncio.timeout(30.0):
        while not replica.engine.asked:
            replica.pass_time()
            await asyncio.sleep(0.005)
    task.cancel()
    assert replica.engine.asked == ["GET /is_sleeping"]


async def post_standby(replica: Replica, body: bytes, token: str = "the-token") -> httpx.Response:
    async def want(*_: object) -> None:
        raise AssertionError("nobody asks for an adapter here")

    app = make_peer_app(lambda path: ("the-token",), want, lambda _: None, [role_routes(replica.standby)])  # type: ignore[arg-type]
    headers = {"authorization": f"Bearer {token}"}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://agent") as client:
        return await client.post("/standing", content=body, headers=headers)


async def test_the_controller_flips_it_with_the_token_alone() -> None:
    replica = Replica()
    assert (await post_standby(replica, b'{"standby": true}', token="another")).status_code == 401
    answer = await post_standby(replica, b'{"standby": true}')
    assert (answer.status_code, answer.json()["phase"]) == (200, "warm")


@pytest.mark.parametrize("body", [b"", b"[]", b'{"standby": 1}', b"{" * 2000, b" " * 5000], ids=len)
async def test_invalid_standby_body_is_refused(body: bytes) -> None:
    assert (await post_standby(Replica(), body)).status_code == 400


async def test_an_engine_that_does_not_wake_stays_warm() -> None:
    replica = Replica(may_sleep=True)
    await replica.standby.change_role(standby=True)
    await replica.until_asleep()
    replica.engine.broken = True
    answer = await post_standby(replica, b'{"standby": false}')
    assert answer.status_code == 503
    assert replica.status.phase()[0] == "warm"
