"""The agent's routes, over ASGI."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx
import pytest

from functions.engines.errors import EngineUnreachable
from functions.replica.app import Drain, make_app
from functions.replica.status import Adapters, AgentStatus, EngineLoad
from tests.replica.statuses import make_status


@pytest.fixture
def status() -> AgentStatus:
    return make_status(load=EngineLoad(running=1))


@dataclass
class Engine:
    away: bool = False

    async def metrics_page(self) -> bytes:
        if self.away:
            raise EngineUnreachable("connection refused")
        return b"vllm:x 2\n"


@pytest.fixture
def engine() -> Engine:
    return Engine()


@pytest.fixture
def drain(status: AgentStatus) -> Drain:
    return Drain(status, timeout_s=60)


@asynccontextmanager
async def client_at(
    address: str, status: AgentStatus, drain: Drain, engine: Engine
) -> AsyncIterator[httpx.AsyncClient]:
    app = make_app(status, drain, lambda: b"shoal_x 1\n", engine.metrics_page)
    transport = httpx.ASGITransport(app, client=(address, 40_000))
    async with httpx.AsyncClient(transport=transport, base_url="http://agent") as opened:
        yield opened


@pytest.fixture
async def client(status: AgentStatus, drain: Drain, engine: Engine) -> AsyncIterator[httpx.AsyncClient]:
    async with client_at("127.0.0.1", status, drain, engine) as opened:
        yield opened


async def test_a_ready_replica(client: httpx.AsyncClient) -> None:
    answer = await client.get("/readyz")
    assert answer.status_code == 200
    assert answer.json() == {
        "replica_id": "r0",
        "pool": "smollm2-135m",
        "phase": "ready",
        "reason": "",
        "adapters": ["acme/bot@sha256:0123456789abcdef"],
        "adapter_room": 0,
        "cold_adapters": 0,
        "running": 1,
        "waiting": 0,
        "snapshot_epoch": 7,
        "snapshot_problem": "",
        "engine_version": "0.32.0",
        "not_ready": "",
    }
    assert (await client.get("/healthz")).status_code == 200
    assert (await client.get("/engine/livez")).status_code == 200
    assert (await client.get("/metrics")).text == "shoal_x 1\n"


async def test_a_refused_snapshot_is_told_and_does_not_hold_the_replica_back(
    client: httpx.AsyncClient, status: AgentStatus
) -> None:
    status.snapshot_problem = lambda: "the registry's snapshot is refused: not a snapshot"
    answer = await client.get("/readyz")
    assert answer.status_code == 200
    told = answer.json()
    assert told["snapshot_problem"] == told["reason"] == "the registry's snapshot is refused: not a snapshot"


async def test_a_replica_without_a_snapshot_is_not_ready(client: httpx.AsyncClient, status: AgentStatus) -> None:
    status.adapters = Adapters()
    answer = await client.get("/readyz")
    assert (answer.status_code, answer.json()["not_ready"]) == (503, "no snapshot yet: adapters are unknown")


async def test_a_condemned_engine_fails_only_the_engines_probe(client: httpx.AsyncClient, status: AgentStatus) -> None:
    status.condemned = "hung for 30 s: no token"
    answer = await client.get("/engine/livez")
    assert (answer.status_code, answer.json()["condemned"]) == (503, "hung for 30 s: no token")
    assert (await client.get("/healthz")).status_code == 200


async def test_drain_is_announced_at_once(client: httpx.AsyncClient, status: AgentStatus) -> None:
    answer = await client.post("/drain")
    assert (answer.status_code, answer.json()) == (202, {"drained": False, "outstanding": 1})
    assert status.phase()[0] == "draining"
    assert (await client.get("/readyz")).status_code == 503


@pytest.mark.parametrize("wait_s", ["-1", "nan", "inf", "1e9", "x"])
async def test_invalid_wait_is_refused(client: httpx.AsyncClient, status: AgentStatus, wait_s: str) -> None:
    assert (await client.post("/drain", params={"wait_s": wait_s})).status_code == 422
    assert not status.draining


@pytest.mark.parametrize("address", ["10.1.2.3", "::ffff:10.1.2.3", "fd00::1", "unknown"])
async def test_drain_over_the_network_is_refused(
    status: AgentStatus, drain: Drain, engine: Engine, address: str
) -> None:
    """A POST from another pod must not drain a replica permanently."""
    async with client_at(address, status, drain, engine) as stranger:
        refused = await stranger.post("/drain")
        assert (refused.status_code, "kubectl exec" in refused.text) == (403, True)
        assert (await stranger.delete("/drain")).status_code == 403
        assert (await stranger.get("/metrics")).status_code == 200
    assert not status.draining


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "::ffff:127.0.0.1"])
async def test_drain_can_be_cancelled(status: AgentStatus, drain: Drain, engine: Engine, address: str) -> None:
    async with client_at(address, status, drain, engine) as client:
        await client.post("/drain")
        assert (await client.delete("/drain")).json() == {"draining": False}
        assert (status.phase()[0], drain.done) == ("ready", False)
        assert (await client.delete("/drain")).status_code == 200, "again is harmless"


async def test_final_drain_cannot_be_cancelled(client: httpx.AsyncClient, status: AgentStatus, drain: Drain) -> None:
    drain.start("asked by POST /drain")
    drain.start("asked by a signal", is_final=True)
    assert (await client.delete("/drain")).status_code == 409
    assert status.draining


async def test_agent_proxies_the_engines_metrics(
    client: httpx.AsyncClient, engine: Engine, status: AgentStatus
) -> None:
    """A busy engine must not answer 502, since Prometheus would lose the scrape."""
    now_s = status.clock()
    status.clock = lambda: now_s
    assert (await client.get("/engine/metrics")).text == "vllm:x 2\n"
    engine.away = True
    answer = await client.get("/engine/metrics")
    assert (answer.status_code, answer.text, answer.headers["age"]) == (200, "vllm:x 2\n", "0"), "busy: as of before"
    status.clock = lambda: now_s + 31.0
    answer = await client.get("/engine/metrics")
    assert (answer.status_code, "connection refused" in answer.text) == (503, True), "gone must show as gone"
    assert answer.headers["retry-after"] == "5"
