"""The routes for gateways and other agents, over ASGI: authentication first, then the status of each answer."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from functools import partial

import httpx
import pytest
from fastapi import APIRouter, FastAPI

from functions.api.ids import EngineName
from functions.fleet.agent_credentials import agent_credential
from functions.fleet.role_credentials import PURPOSES, ROLES, Purpose, Role, RoleCredentials, document
from functions.replica import cold_calls
from functions.replica.cold_calls import ColdCalls, ColdLoadAnswer
from functions.replica.peer_app import BODY_MAX_BYTES, CredentialRequired, accepted_credentials, make_peer_app

NAME = EngineName("acme/bot@sha256:0123456789abcdef")
TOKEN = {"authorization": "Bearer the-token"}


class Loads:
    """Fake loader that records requests and returns the answer set by the test."""

    def __init__(self) -> None:
        self.answer = ColdLoadAnswer("loaded", tier="disk")
        self.asked: list[tuple[str, float]] = []
        self.counted: list[str] = []

    async def load(self, name: EngineName, wait_s: float) -> ColdLoadAnswer:
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

    accepted = partial(accepted_credentials, RoleCredentials("the-token"), lambda: ("10.0.0.7", 8500))
    app = make_peer_app(accepted, loads.load, loads.counted.append, [router])
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://agent") as opened:
        yield opened


@pytest.mark.parametrize(
    ("answer", "status", "told"),
    [
        (ColdLoadAnswer("loaded", tier="s3"), 200, {"state": "loaded", "tier": "s3"}),
        (ColdLoadAnswer("unknown", "why"), 404, {"reason": "why"}),
        (ColdLoadAnswer("no_room", "why"), 409, {"reason": "why"}),
        (ColdLoadAnswer("refused", "why"), 422, {"reason": "why"}),
        (ColdLoadAnswer("failed", "why"), 503, {"reason": "why"}),
        (ColdLoadAnswer("not_ready", "why"), 503, {"reason": "why"}),
        (ColdLoadAnswer("timed_out", "why"), 504, {"reason": "why"}),
    ],
)
async def test_each_answer_has_its_status(
    client: httpx.AsyncClient, loads: Loads, answer: ColdLoadAnswer, status: int, told: dict[str, str]
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


async def test_only_agent_credentials_open_the_route(client: httpx.AsyncClient) -> None:
    for host, port, status in (("10.0.0.7", 8500, 200), ("10.0.0.8", 8500, 401), ("10.0.0.7", 8501, 401)):
        headers = {"authorization": f"Bearer {agent_credential('the-token', host, port)}"}
        assert (await client.get("/chunks/abc", headers=headers)).status_code == status


DOORS = {"/adapters/load": "gateway", "/standing": "controller", "/chunks/abc": "agent"}


@pytest.mark.parametrize("role", ["gateway", "controller", "agent"])
async def test_each_role_opens_its_own_routes_and_no_others(loads: Loads, role: Role) -> None:
    """Each role sends every secret of its document in every way that the routes accept."""
    given = RoleCredentials(document(role, ["the-token"]).decode())
    agent = RoleCredentials(document("agent", ["the-token"]).decode())
    router = APIRouter()
    for path in DOORS:
        router.add_api_route(path, lambda: "inside", methods=["POST"])
    app = CredentialRequired(FastAPI(), partial(accepted_credentials, agent, lambda: ("10.0.0.7", 8500)))
    app._app.include_router(router)  # type: ignore[attr-defined]
    own: dict[Role, tuple[Purpose, ...]] = {"gateway": ("load",), "controller": ("standing",), "agent": ("chunks",)}
    secrets = [each for purpose in PURPOSES if purpose in ROLES[role] for each in given.accepted(purpose)]
    if role == "agent":  # it must know the other roles' secrets
        secrets = [each for purpose in ("agent", "heartbeat", "chunks") for each in given.accepted(purpose)]
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://agent") as client:
        for path, owner in DOORS.items():
            shown = [*secrets, *(agent_credential(each, "10.0.0.7", 8500) for each in secrets)]
            answers = [
                (await client.post(path, headers={"authorization": f"Bearer {each}"})).status_code for each in shown
            ]
            assert (200 in answers) == (owner == role), path
        for purpose in own[role]:
            elsewhere = agent_credential(given.secret(purpose), "10.0.0.8", 8500)
            for path in DOORS:
                headers = {"authorization": f"Bearer {elsewhere}"}
                assert (await client.post(path, headers=headers)).status_code == 401
        assert (await client.post("/chunks/abc", headers=TOKEN)).status_code == 401, "it has no token to compare with"


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
async def test_invalid_load_requests_are_refused(client: httpx.AsyncClient, loads: Loads, body: bytes) -> None:
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


async def test_all_waiting_calls_for_an_adapter_get_one_answer() -> None:
    calls = ColdCalls()
    waiting = asyncio.gather(*(calls.wait(NAME, 30.0) for _ in range(50)))
    await asyncio.sleep(0)
    calls.settle(NAME, ColdLoadAnswer("loaded", tier="s3"))
    assert {found.tier for found in await waiting} == {"s3"}
    assert calls.names == ()


async def test_cancelled_or_timed_out_call_does_not_affect_others() -> None:
    calls = ColdCalls()
    patient = asyncio.ensure_future(calls.wait(NAME, 30.0))
    leaver = asyncio.ensure_future(calls.wait(NAME, 30.0))
    assert (await calls.wait(NAME, 0.01)).answer == "timed_out"
    leaver.cancel()
    await asyncio.sleep(0)
    calls.settle(NAME, ColdLoadAnswer("no_room", "full"))
    assert (await patient).answer == "no_room"
    assert (await calls.wait(NAME, 0.01)).answer == "timed_out"
    assert calls.names == (), "nothing is kept for those who left"


async def test_calls_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cold_calls, "MAX_CALLS", 2)
    calls = ColdCalls()
    waiting = [asyncio.ensure_future(calls.wait(NAME, 30.0)) for _ in range(2)]
    await asyncio.sleep(0)
    assert calls.full
    calls.settle_all(ColdLoadAnswer("not_ready", "gone"))
    await asyncio.gather(*waiting)
    assert not calls.full
