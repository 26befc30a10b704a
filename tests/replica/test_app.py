"""The agent's routes, over ASGI."""

from collections.abc import AsyncIterator

import httpx
import pytest

from functions.replica.app import Drain, make_app
from functions.replica.status import Adapters, AgentStatus, EngineLoad
from tests.replica.statuses import make_status


@pytest.fixture
def status() -> AgentStatus:
    return make_status(load=EngineLoad(running=1))


@pytest.fixture
async def client(status: AgentStatus) -> AsyncIterator[httpx.AsyncClient]:
    app = make_app(status, Drain(status, timeout_s=60), lambda: b"shoal_x 1\n")
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://agent") as opened:
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
async def test_a_wait_that_makes_no_sense_is_refused(
    client: httpx.AsyncClient, status: AgentStatus, wait_s: str
) -> None:
    assert (await client.post("/drain", params={"wait_s": wait_s})).status_code == 422
    assert not status.draining
