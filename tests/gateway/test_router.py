"""The router at a gateway: what it counts for a request and releases at any end."""

import msgspec

from functions.api.ids import ReplicaId
from tests.gateway import sse
from tests.gateway.engine_rig import Play
from tests.gateway.hello import Playing
from tests.gateway.rig import POOL

LONG = "word " * 2000


def ahead(p: Play) -> dict[str, int]:
    return dict(p.gateway.services.router.load.ahead_tokens)


async def test_a_streams_prompt_is_ahead_until_its_first_token(play: Playing) -> None:
    p = play("r0")
    exchange = p.ask(stream=True)
    assert ahead(p) == {"r0": exchange.admitted.features.prompt_tokens}
    engine = await p.connects()
    engine.begins_stream()
    engine.streams(sse.role("acme/bot"))
    assert ahead(p) != {}, "a stream that has only said that it begins"
    engine.streams(sse.token("acme/bot", "Hi"))
    assert (ahead(p), p.gateway.services.router.load.in_flight) == ({}, {"r0": 1})
    exchange.client_left()
    assert p.quiet() and ahead(p) == {}


async def test_whole_answers_prompt_counts_as_computed_at_the_predicted_time(play: Playing) -> None:
    p = play("r0")
    first = p.ask(stream=False)
    assert ahead(p) == {"r0": first.admitted.features.prompt_tokens}
    p.after(59.0)
    second = p.ask(stream=True)
    assert ahead(p) == {"r0": second.admitted.features.prompt_tokens}, "the first one's is over; both are in flight"
    assert p.gateway.services.router.load.in_flight == {"r0": 2}
    for exchange in (first, second):
        exchange.client_left()
    assert p.quiet() and ahead(p) == {}


async def test_a_session_goes_back_to_its_replica(play: Playing) -> None:
    p = play("r0", "r1", "r2", "r3")
    homes = set()
    for _ in range(8):
        exchange = p.ask(stream=True, session_id="chat-1")
        homes |= set(p.gateway.services.router.load.in_flight)
        exchange.client_left()
    assert len(homes) == 1


async def test_a_chat_without_a_session_goes_back_too(play: Playing) -> None:
    p = play("r0", "r1", "r2", "r3")
    said = [{"role": "user", "content": "Where is the gold?"}]
    first = p.ask(stream=True, messages=said)
    homes = set(p.gateway.services.router.load.in_flight)
    first.client_left()
    for _ in range(6):
        said += [{"role": "assistant", "content": "Buried."}, {"role": "user", "content": "Where?"}]
        exchange = p.ask(stream=True, messages=said)
        homes |= set(p.gateway.services.router.load.in_flight)
        exchange.client_left()
    assert len(homes) == 1


async def test_identical_prompts_have_no_home(play: Playing) -> None:
    """A load test with one prompt, or a greeting, would otherwise queue at one replica for a cache that does not
    exist."""
    p = play("r0", "r1")
    for _ in range(8):
        p.ask(stream=True, messages=[{"role": "user", "content": "Hello"}])
    assert p.gateway.services.router.load.in_flight == {"r0": 4, "r1": 4}


async def test_long_prompts_spread_by_their_tokens(play: Playing) -> None:
    p = play("r0", "r1")
    long = p.ask(stream=True, messages=[{"role": "user", "content": LONG}])
    (busy,) = p.gateway.services.router.load.in_flight
    for _ in range(3):
        p.ask(stream=True, messages=[{"role": "user", "content": f"short {_}"}])
    assert p.gateway.services.router.load.in_flight[busy] == 1, (
        "three short ones are sooner done behind each other than behind the long one"
    )
    assert not long.ended


async def test_engine_failures_and_rejections_reach_the_fleet_view(play: Playing) -> None:
    p = play("r0", "r1")
    p.ask(stream=True)
    (refusing,) = p.gateway.services.router.load.in_flight
    engine = await p.connects()
    engine.refuses(503)
    status = p.gateway.services.fleet.outlier_status(POOL, p.rig.clock())
    assert set(status.penalties_ms) == {refusing} and not status.out


async def test_suspected_replica_is_used_only_if_no_other_can_answer(play: Playing) -> None:
    """A replica on a node reported not ready is avoided, but no request is rejected because of it."""
    p = play("r0", "r1")
    fleet = p.gateway.services.fleet
    for heartbeat, _ in fleet.heartbeats():
        told = {"sequence": heartbeat.sequence + 1, "node": f"node-{heartbeat.replica_id}"}
        fleet.fold(msgspec.structs.replace(heartbeat, **told), p.rig.clock())
    fleet.set_troubled_nodes({"node-r0": "down"}, p.rig.clock() + 60.0)
    p.gateway.sweep()
    for _ in range(6):
        exchange = p.ask(stream=True)
        assert set(p.gateway.services.router.load.in_flight) == {"r1"}
        exchange.client_left()
    fleet.eject(ReplicaId("r1"), p.rig.clock())
    p.ask(stream=True)
    assert set(p.gateway.services.router.load.in_flight) == {"r0"}


async def test_last_turn_of_a_conversation_counts_as_cached_at_its_home(play: Playing) -> None:
    """Turns of the conversation also go to other gateways, which report nothing for those routed to the hash home.

    Counting only what this gateway sent, a home seemed to have a tenth of a long chat, and new replicas looked as good.
    """
    p = play("r0", "r1")
    said = [{"role": "user", "content": "Where is the gold? " * 100}]
    p.ask(stream=True, messages=said, session_id="chat-1").client_left()
    elsewhere = [{"role": "assistant", "content": "Buried. " * 50}, {"role": "user", "content": LONG}]
    answer = [{"role": "assistant", "content": "There. " * 50}, {"role": "user", "content": "Where? " * 100}]
    exchange = p.ask(stream=True, messages=said + elsewhere + answer, session_id="chat-1")
    (left_tokens,) = ahead(p).values()
    prompt_tokens = exchange.admitted.features.prompt_tokens
    assert exchange.admitted.former_tokens is not None
    assert left_tokens == prompt_tokens - exchange.admitted.former_tokens < 0.12 * prompt_tokens
    exchange.client_left()
