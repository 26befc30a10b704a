"""The routes for gateways and other agents, over ASGI: the token first, then each answer with its status."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import httpx
import pytest
from fastapi import APIRouter

from functions.api.ids import EngineName
from functions.fleet.agent_credentials import agent_credential
from functions.replica import cold_calls
from functions.replica.cold_calls import ColdCalls, LoadAnswer
from functions.replica.peer_app import BODY_MAX_BYTES, make_peer_app

NAME = EngineName("acme/bot@sha256:0123456789abcdef")
TOKEN = {"authorization": "Bearer the-token"}


class Loads:
    """What was asked, and what is answered."""

    def __init__(self) -> None:
        self.answer = LoadAnswer("loaded", tier="disk")
        self.asked: list[tuple[str, float]] = []
        self.counted: list[str] = []

    async def want(self, name: EngineName, wait_s: float) -> LoadAnswer:
        self.asked.append((name, wait_s))
        return self.answer


@pytest.fixture
def loads() -> Loads:
    return Loads()


@pytest.fixture
async def client(loads: Loads) -> AsyncIterator[httpx.AsyncClient]:
    router = APIRouter()

    @router.get("/chunks/{sha256}")
    async def chunk(sha256: str) -> str:
        return sha256

    own = agent_credential("the-token", "10.0.0.7", 8500)
    app = make_peer_app("the-token", loads.want, loads.counted.append, [router], credential=lambda: own)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://agent") as opened:
        yield opened


@pytest.mark.parametrize(
    ("answer", "status", "told"),
    [
        (LoadAnswer("loaded", tier="s3"), 200, {"state": "loaded", "tier": "s3"}),
        (LoadAnswer("unknown", "why"), 404, {"reason": "why"}),
        (LoadAnswer("no_room", "why"), 409, {"reason": "why"}),
        (LoadAnswer("refused", "why"), 422, {"reason": "why"}),
        (LoadAnswer("failed", "why"), 503, {"reason": "why"}),
        (LoadAnswer("not_ready", "why"), 503, {"reason": "why"}),
        (LoadAnswer("timed_out", "why"), 504, {"reason": "why"}),
    ],
)
async def test_each_answer_has_its_status(
    client: httpx.AsyncClient, loads: Loads, answer: LoadAnswer, status: int, told: dict[str, str]
) -> None:
    loads.answer = answer
    found = await client.post("/adapters/load", json={"engine_name": NAME, "wait_s": 2.5, "new": 1}, headers=TOKEN)
    assert (found.status_code, found.json()) == (status, told)
    assert (loads.asked, loads.counted) == ([(NAME, 2.5)], [answer.answer])


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer wrong"},
        {"authorization": "the-token"},
        {"authorization": "bearer the-token"},
        [("authorization", "Bearer the-token"), ("authorization", "Bearer the-token")],
    ],
)
@pytest.mark.parametrize("path", ["/adapters/load", "/chunks/abc", "/nowhere", "/openapi.json"])
async def test_nothing_answers_without_the_token(
    client: httpx.AsyncClient, loads: Loads, path: str, headers: dict[str, str]
) -> None:
    found = await client.post(path, json={"engine_name": NAME}, headers=headers)
    assert (found.status_code, loads.asked) == (401, [])


async def test_an_agents_own_credential_opens_it_and_no_others(client: httpx.AsyncClient) -> None:
    for host, port, status in (("10.0.0.7", 8500, 200), ("10.0.0.8", 8500, 401), ("10.0.0.7", 8501, 401)):
        headers = {"authorization": f"Bearer {agent_credential('the-token', host, port)}"}
        assert (await client.get("/chunks/abc", headers=headers)).status_code == status


async def test_routers_stand_behind_the_same_token(client: httpx.AsyncClient) -> None:
    assert (await client.get("/chunks/abc", headers=TOKEN)).json() == "abc"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b'{"engine_name": ""}',
        b'{"engine_name": 1}',
        b'{"engine_name": "a", "wait_s": -1}',
        b'{"engine_name": "a", "wait_s": 1e9}',
        b'{"engine_name": "a", "wait_s": NaN}',
        b'{"engine_name": "a", "wait_s": "1"}',
        b'{"engine_name": "' + b"a" * 321 + b'"}',
        b"[" * 4000,
        b"\xff",
    ],
)
async def test_what_makes_no_sense_is_refused(client: httpx.AsyncClient, loads: Loads, body: bytes) -> None:
    found = await client.post("/adapters/load", content=body, headers=TOKEN)
    assert (found.status_code, loads.asked) == (400, [])
    assert "reason" in found.json()


async def test_a_body_over_its_bound_is_not_read(client: httpx.AsyncClient) -> None:
    def endless() -> Iterator[bytes]:
        while True:
            yield b" " * BODY_MAX_BYTES

    async def content() -> AsyncIterator[bytes]:
        for part in endless():
            yield part

    assert (await client.post("/adapters/load", content=content(), headers=TOKEN)).status_code == 413


async def test_all_who_wait_for_one_adapter_get_one_answer() -> None:
    calls = ColdCalls()
    waiting = asyncio.gather(*(calls.wait(NAME, 30.0) for _ in range(50)))
    await asyncio.sleep(0)
    calls.settle(NAME, LoadAnswer("loaded", tier="s3"))
    assert {found.tier for found in await waiting} == {"s3"}
    assert calls.names == ()


async def test_one_who_leaves_or_gives_up_takes_nothing_from_the_others() -> None:
    calls = ColdCalls()
    patient = asyncio.ensure_future(calls.wait(NAME, 30.0))
    leaver = asyncio.ensure_future(calls.wait(NAME, 30.0))
    assert (await calls.wait(NAME, 0.01)).answer == "timed_out"
    leaver.cancel()
    await asyncio.sleep(0)
    calls.settle(NAME, LoadAnswer("no_room", "full"))
    assert (await patient).answer == "no_room"
    assert (await calls.wait(NAME, 0.01)).answer == "timed_out"
    assert calls.names == (), "nothing is kept for those who left"


async def test_calls_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cold_calls, "MAX_CALLS", 2)
    calls = ColdCalls()
    waiting = [asyncio.ensure_future(calls.wait(NAME, 30.0)) for _ in range(2)]
    await asyncio.sleep(0)
    assert calls.full
    calls.settle_all(LoadAnswer("not_ready", "gone"))
    await asyncio.gather(*waiting)
    assert not calls.full
