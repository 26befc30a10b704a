"""The memory test's virtual gateway must answer its traffic: one that rejects everything would show nothing."""

from functions.gateway.intake.routes import CHAT
from loadtests.memory.__main__ import Client
from loadtests.memory.traffic import Traffic
from loadtests.memory.virtual_gateway import VirtualGateway


def test_memory_load_requests_get_200_or_404() -> None:
    virtual, traffic, client = VirtualGateway(), Traffic(seed=1), Client()
    for _ in range(300):
        headers, body = traffic.request()
        virtual.gateway.handle(CHAT, headers, body, client, virtual.now_s)
    virtual.pass_on(0.25)
    assert set(client.statuses) == {200, 404}
    assert client.statuses[200] > 200
    assert len(virtual.gateway.services.open_requests) == 0
    assert traffic.sessions > 290 and traffic.names > 200
    assert len(virtual.gateway.services.prefixes) > 300, "prompts were recorded"
    assert len(virtual.gateway.services.intake.features.lengths) > 200, "answers taught"
