"""The memory test's world answers what its traffic asks: a figure of a gateway that refuses everything says nothing."""

from functions.gateway.intake.routes import CHAT
from loadtests.memory.__main__ import Client
from loadtests.memory.traffic import Traffic
from loadtests.memory.world import World


def test_its_requests_are_answered_or_ask_for_what_nobody_has() -> None:
    world, traffic, client = World(), Traffic(seed=1), Client()
    for _ in range(300):
        headers, body = traffic.request()
        world.gateway.handle(CHAT, headers, body, client, world.now_s)
    world.pass_on(0.25)
    assert set(client.statuses) == {200, 404}
    assert client.statuses[200] > 200
    assert len(world.gateway.services.open_requests) == 0
    assert traffic.sessions > 290 and traffic.names > 200
    assert len(world.gateway.services.prefixes) > 300, "prompts were recorded"
    assert len(world.gateway.services.intake.features.lengths) > 200, "answers taught"
