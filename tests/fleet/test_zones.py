"""The process's own zone is requested with growing pauses until it is known, and then never again."""

import asyncio
from typing import Any

import httpx
import pytest

from functions.fleet import zones
from functions.fleet.zones import ZoneTable, fetch_zone

TABLE = ZoneTable({"n1": "eu-1a", "n2": "eu-1b"}, {"gateway-1": "n2", "gateway-2": "n9"})


@pytest.mark.parametrize(
    ("asked", "zone"),
    [
        ({"node": "n1"}, "eu-1a"),
        ({"pod": "gateway-1"}, "eu-1b"),
        ({"pod": "gateway-2"}, ""),
        ({"pod": "n1"}, ""),
        ({"node": "n3"}, ""),
        ({}, ""),
    ],
)
def test_a_node_is_in_its_zone_and_a_pod_in_its_nodes(asked: dict[str, str], zone: str) -> None:
    assert TABLE.zone_of(**asked) == zone


async def test_it_is_asked_for_less_and_less_often_until_it_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    waited_s: list[float] = []
    answers: list[Any] = [
        httpx.ConnectError("nobody there"),
        httpx.Response(500),
        httpx.Response(200, content=b"rubbish"),
        httpx.Response(200, json={"zone": "a zone that is none"}),
        *[httpx.Response(200, json={"zone": ""})] * 8,
        httpx.Response(200, json={"zone": "eu-1b"}),
    ]
    asked: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        found = answers.pop(0)
        if isinstance(found, Exception):
            raise found
        assert isinstance(found, httpx.Response)
        return found

    async def sleep(seconds: float) -> None:
        waited_s.append(seconds)

    monkeypatch.setattr(zones.asyncio, "sleep", sleep)
    taken: list[str] = []
    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as client:
        async with asyncio.timeout(60):
            await fetch_zone(client, "http://registry/", "token", ("pod", "gateway-1"), taken.append)
    assert (taken, answers) == (["eu-1b"], [])
    assert waited_s == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300]
    assert {str(request.url) for request in asked} == {"http://registry/v1/fleet/zones?pod=gateway-1"}
    assert asked[0].headers["authorization"] == "Bearer token"
