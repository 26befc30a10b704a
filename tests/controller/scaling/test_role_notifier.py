"""Agents are notified all at once; an unreachable or refusing agent is named and delays no other."""

import asyncio

import httpx

from functions.controller.autoscaling.allocation import RoleOrder
from functions.controller.autoscaling.clients import RoleNotifier
from functions.fleet.agent_credentials import agent_credential


async def test_agents_get_notices_with_their_own_token_and_failures_are_named() -> None:
    heard: list[tuple[str, str, str]] = []

    def agent(request: httpx.Request) -> httpx.Response:
        if request.url.port == 1:
            raise httpx.ConnectError("refused")
        heard.append((str(request.url), request.headers["authorization"], request.content.decode()))
        return httpx.Response(503 if request.url.port == 2 else 200, text="it sleeps")

    orders = [RoleOrder(f"a-{port}", "10.0.0.1", port, standby=False) for port in (1, 2, 3)]
    async with httpx.AsyncClient(transport=httpx.MockTransport(agent)) as client:
        troubles = await asyncio.wait_for(RoleNotifier(client, "the-token").notify(orders), 30.0)
    assert heard[-1] == (
        "http://10.0.0.1:3/standing",
        f"Bearer {agent_credential('the-token', '10.0.0.1', 3)}",
        '{"standby":false}',
    )
    assert [trouble.split(":")[0] for trouble in troubles] == ["a-1", "a-2"]
    assert "refused" in troubles[0] and "503: it sleeps" in troubles[1]
