"""A gateway process that is stopped while its clients send: no connection is reset."""

import asyncio
import signal
import ssl
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.gateway.client_rig import get, post
from tests.gateway.live import LiveClient, well
from tests.gateway.processes import GatewayProcess, valkey
from tests.gateway.test_processes import connected, fleet

pytestmark = [pytest.mark.servers, pytest.mark.timeout(400)]
_HEAD_S = 10.0  # one of the gateway's limits


@pytest.fixture
def gateway(tmp_path: Path, certificate: tuple[Path, Path]) -> Iterator[GatewayProcess]:
    with valkey(tmp_path) as bus_url:
        yield GatewayProcess(tmp_path, bus_url, certificate)


async def _fresh(caller: LiveClient) -> bytes:
    return post()


async def _idle_on_the_lane(caller: LiveClient) -> bytes:
    await caller.send(post())
    assert (await caller.answer()).status == 200
    return post()


async def _idle_elsewhere(caller: LiveClient) -> bytes:
    await caller.send(get("/healthz"))
    assert (await caller.answer()).status == 200
    return post()


async def _inside_a_head(caller: LiveClient) -> bytes:
    await caller.send(post()[:20])
    return post()[20:]


async def _inside_a_head_elsewhere(caller: LiveClient) -> bytes:
    await _idle_elsewhere(caller)
    return await _inside_a_head(caller)


async def _inside_a_body(caller: LiveClient) -> bytes:
    await caller.send(post()[:-5])
    return post()[-5:]


_BEGUN = (_fresh, _idle_on_the_lane, _idle_elsewhere, _inside_a_head, _inside_a_head_elsewhere, _inside_a_body)


@pytest.mark.parametrize("stopped_s", [2.0, pytest.param(_HEAD_S + 1.5, marks=pytest.mark.soak)])
async def test_requests_sent_to_a_stopped_gateway_are_answered(
    gateway: GatewayProcess, trust: ssl.SSLContext, stopped_s: float
) -> None:
    """This holds for anything that clients had begun, with and without TLS, even past the gateway's own timeouts."""
    async with fleet(gateway.bus_url, well), AsyncExitStack() as stack:
        process = stack.enter_context(gateway.start())
        await gateway.ready()
        callers = []
        for over in (trust, None):
            for begin in _BEGUN:
                caller = await stack.enter_async_context(connected(gateway, over))
                callers.append((begin.__name__, caller, await begin(caller)))
        await asyncio.sleep(0.3)  # nothing tells a client that its bytes were read
        process.send_signal(signal.SIGSTOP)
        for _, caller, rest in callers:
            await caller.send(rest)
        await asyncio.sleep(stopped_s)  # real time: the gateway's clocks go on
        process.send_signal(signal.SIGCONT)
        answers = [(name, (await caller.answer()).status) for name, caller, _ in callers]
        assert {status for _, status in answers} == {200}, answers
