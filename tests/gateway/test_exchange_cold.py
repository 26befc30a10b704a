"""The exchange when no replica has its adapter: it waits for a load and ends exactly once, whatever happens."""

import pytest

from functions.gateway.routing.load_client import LoadState
from tests.gateway import sse
from tests.gateway.engine_rig import Play
from tests.gateway.hello import PUBLIC_END, PUBLIC_HELLO, Playing, finishes
from tests.gateway.loader_rig import PlayedLoader
from tests.gateway.rig import BOT_V1, RIVAL, heartbeat, limits


class Cold:
    """A play whose replicas have agents but hold no adapter of acme's."""

    def __init__(self, play: Playing, *replicas: str, **settings: object) -> None:
        self.loader = PlayedLoader()
        self.names = replicas or ("r0", "r1")
        self.p: Play = play(*self.names, loader=self.loader, **settings)
        self.beat(adapters=(RIVAL,))

    def beat(self, sequence: int = 2, **changes: object) -> None:
        for name in self.names:
            known = {"peer_port": 9, "adapter_room": 1, **changes}
            self.p.gateway.receive_heartbeat(heartbeat(name, sequence=sequence, **known))

    async def agent(self, state: LoadState, reason: str = "") -> str:
        call = await self.loader.next()
        call.answers(state, reason)
        await self.p.settle()
        return call.replica

    def cold_loads(self, outcome: str) -> float:
        name = "shoal_cold_load_seconds_count"
        return self.p.gateway.services.metrics.registry.get_sample_value(name, {"outcome": outcome}) or 0.0


@pytest.mark.parametrize("stream", [True, False])
async def test_a_cold_adapter_is_loaded_and_then_answers(play: Playing, stream: bool) -> None:
    cold = Cold(play)
    cold.p.ask(stream=stream)
    await cold.p.settle()
    cold.p.after(2.5)
    assert cold.p.client.status is None and cold.p.gateway.services.router.load.in_flight == {}
    replica = await cold.agent("loaded")
    engine = await cold.p.connects()
    assert engine.replica_id == replica and engine.requests[0]["model"] == BOT_V1
    if stream:
        finishes(engine)
        assert cold.p.client.body == PUBLIC_HELLO + PUBLIC_END
    else:
        engine.answers(200, sse.whole(BOT_V1))
    assert cold.p.client.status == 200 and cold.p.client.headers[b"x-shoal-replica"] == replica.encode()
    timing = cold.p.client.headers[b"server-timing"]
    assert b"load;dur=2500.00" in timing and b"route;dur=0.00" in timing
    assert cold.p.quiet() and cold.cold_loads("loaded") == 1


async def test_concurrent_requests_wait_for_one_load(play: Playing) -> None:
    cold = Cold(play)
    exchanges = [cold.p.ask(stream=False) for _ in range(50)]
    replica = await cold.agent("loaded")
    for _ in exchanges:
        (await cold.p.connects()).answers(200, sse.whole(BOT_V1))
    assert cold.loader.asked == [replica] and cold.p.quiet() and cold.p.requests(200) == 50


async def test_loaded_adapter_is_used_before_the_next_heartbeat(play: Playing) -> None:
    cold = Cold(play)
    cold.p.ask(stream=False)
    await cold.agent("loaded")
    (await cold.p.connects()).answers(200, sse.whole(BOT_V1))
    cold.p.ask(stream=False)
    cold.p.engine.answers(200, sse.whole(BOT_V1))
    assert cold.p.client.status == 200 and len(cold.loader.asked) == 1


@pytest.mark.parametrize(
    ("state", "code", "words"),
    [
        ("refused", "model_unavailable", "rank 64 is over 16"),
        ("slow", "model_not_ready", "is being loaded"),
    ],
)
async def test_failed_load_is_explained(play: Playing, state: LoadState, code: str, words: str) -> None:
    cold = Cold(play)
    cold.p.ask()
    await cold.agent(state, "rank 64 is over 16")
    error = cold.p.client.error
    assert (cold.p.client.status, error["code"]) == (503, code) and words in error["message"]
    assert "acme/bot@v1" in error["message"] and BOT_V1 not in error["message"]
    assert (b"retry-after" in cold.p.client.headers) == (state != "refused")
    assert cold.p.quiet() and cold.p.requests(503) == 1
    shed = cold.p.gateway.services.metrics.registry.get_sample_value(
        "shoal_shed_total", {"reason": "adapter_not_loaded"}
    )
    assert shed == 1


async def test_no_free_adapter_slot_answers_overloaded(play: Playing) -> None:
    cold = Cold(play, "r0")
    cold.p.ask()
    call = await cold.loader.next()
    cold.p.rig.clock.forward(14.9)
    call.answers("no_room")
    await cold.p.settle()
    assert (cold.p.client.status, cold.p.client.error["code"]) == (503, "overloaded")
    assert cold.p.quiet()


async def test_too_many_waiting_for_loads_answers_overloaded(play: Playing) -> None:
    cold = Cold(play, limits=limits(cold_waiting=1))
    cold.p.ask()
    cold.p.ask()
    assert (cold.p.client.status, cold.p.client.error["code"]) == (503, "overloaded")
    assert b"retry-after" in cold.p.client.headers


async def test_a_client_that_leaves_waits_no_more(play: Playing) -> None:
    cold = Cold(play)
    exchange = cold.p.ask()
    await cold.p.settle()
    exchange.client_left()
    assert cold.p.quiet() and cold.p.requests(499) == 1
    await cold.agent("loaded")
    assert not cold.p.dials and cold.p.client.status is None


async def test_a_client_that_leaves_at_once_causes_no_load(play: Playing) -> None:
    cold = Cold(play)
    cold.p.ask().client_left()
    await cold.p.settle()
    assert cold.loader.asked == [] and cold.p.quiet()


async def test_the_deadline_ends_the_wait(play: Playing) -> None:
    cold = Cold(play)
    cold.p.ask(header_x_shoal_deadline_ms="3000")
    await cold.p.settle()
    cold.p.after(2.9)
    assert not cold.p.client.ended
    cold.p.after(0.2)
    assert (cold.p.client.status, cold.p.client.error["code"]) == (504, "deadline_exceeded") and cold.p.quiet()
    await cold.agent("loaded")
    assert cold.p.requests(504) == 1


async def test_first_byte_timeout_does_not_run_during_a_load(play: Playing) -> None:
    cold = Cold(play, limits=limits(first_byte_s=1.0))
    cold.p.ask(stream=True)
    cold.p.after(5.0)
    assert not cold.p.client.ended
    await cold.agent("loaded")
    await cold.p.connects()
    cold.p.after(0.9)
    assert not cold.p.engine.dropped
    cold.p.after(0.2)
    assert cold.p.engine.dropped


async def test_gateway_stop_ends_the_wait_for_a_load(play: Playing) -> None:
    cold = Cold(play)
    cold.p.ask()
    cold.p.gateway.cut_short()
    assert cold.p.client.error["code"] == "restarting" and cold.p.quiet()


async def test_loaded_adapter_missing_at_the_engine_is_loaded_once_more(play: Playing) -> None:
    """The agent reports loaded, the engine answers 404: the only replica gets one more load request and then no
    more."""
    cold = Cold(play, "r0")
    cold.p.ask(stream=False)
    for _ in range(2):
        await cold.agent("loaded")
        if cold.p.dials:
            await cold.p.connects()
        cold.p.engine.refuses(404)
        await cold.p.settle()
    assert (cold.p.client.status, cold.p.client.error["code"]) == (503, "model_not_ready")
    assert cold.loader.asked == ["r0", "r0"] and cold.p.quiet()


@pytest.mark.parametrize("state", ["loaded", "no_room"])
async def test_replica_that_answered_404_is_tried_last(play: Playing, state: LoadState) -> None:
    """Both replicas announce an adapter that their engines lack; the first one's heartbeat is not believed again."""
    cold = Cold(play, "r0", "r1", "r2")
    for name in ("r0", "r1"):
        cold.p.gateway.receive_heartbeat(heartbeat(name, sequence=3, adapters=(BOT_V1,), peer_port=9, adapter_room=1))
    cold.p.ask(stream=False)
    for _ in range(2):
        (await cold.p.connects()).refuses(404)
    loaded = await cold.agent(state)
    assert loaded == "r2"
    if state == "no_room":
        loaded = await cold.agent("loaded")
        assert loaded in {"r0", "r1"}
    if cold.p.dials:
        await cold.p.connects()
    engine = next(engine for engine in cold.p.engines if engine.replica_id == loaded)
    engine.answers(200, sse.whole(BOT_V1))
    assert cold.p.client.status == 200 and cold.p.quiet()


async def test_only_remaining_replica_gets_a_load_request_after_its_404(play: Playing) -> None:
    """The other replica is gone and this one's heartbeat is stale: its agent gets a load request, its engine no second
    try."""
    cold = Cold(play)
    cold.beat(sequence=3, adapters=(BOT_V1,))
    cold.p.ask(stream=False)
    gone = await cold.p.refuses_connection()
    lacking = await cold.p.connects()
    lacking.refuses(404)
    assert await cold.agent("loaded") == lacking.replica_id != gone
    assert len(lacking.requests) == 2
    lacking.answers(200, sse.whole(BOT_V1))
    assert cold.p.client.status == 200 and cold.p.quiet()


async def test_lost_replica_is_replaced_by_a_load_elsewhere(play: Playing) -> None:
    cold = Cold(play)
    cold.p.gateway.receive_heartbeat(heartbeat("r0", sequence=3, adapters=(BOT_V1,), peer_port=9, adapter_room=1))
    cold.p.ask(stream=False)
    assert await cold.p.refuses_connection() == "r0"
    assert await cold.agent("loaded") == "r1"
    (await cold.p.connects()).answers(200, sse.whole(BOT_V1))
    assert cold.p.client.status == 200 and cold.p.quiet()


async def test_prompt_that_breaks_an_engine_causes_no_load_elsewhere(play: Playing) -> None:
    cold = Cold(play)
    cold.p.gateway.receive_heartbeat(heartbeat("r0", sequence=3, adapters=(BOT_V1,), peer_port=9, adapter_room=1))
    cold.p.ask(stream=False)
    (await cold.p.connects()).refuses(500)
    await cold.p.settle()
    assert cold.p.client.status == 502 and cold.loader.asked == []


async def test_dead_pool_causes_no_load(play: Playing) -> None:
    cold = Cold(play)
    cold.beat(sequence=3, phase="dead")
    cold.p.ask()
    assert cold.p.client.error["code"] == "no_capacity" and cold.loader.asked == []


async def test_replica_lost_during_a_load_moves_it_elsewhere(play: Playing) -> None:
    cold = Cold(play)
    cold.p.ask(stream=False)
    first = (await cold.loader.next()).replica
    cold.p.gateway.receive_heartbeat(heartbeat(first, sequence=3, phase="dead"))
    assert await cold.agent("loaded") != first
    (await cold.p.connects()).answers(200, sse.whole(BOT_V1))
    assert cold.p.client.status == 200 and cold.p.quiet()
