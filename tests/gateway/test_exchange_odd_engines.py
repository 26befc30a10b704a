"""The exchange with engines that answer unusually."""

from typing import Any

import pytest

from functions.gateway.intake.routes import COMPLETIONS
from functions.gateway.limits import Limits
from tests.gateway import sse
from tests.gateway.engine_rig import STREAM_HEAD
from tests.gateway.hello import END, HELLO, PUBLIC_END, PUBLIC_HELLO, Playing, finishes
from tests.gateway.rig import BOT_V1


async def test_informational_responses_are_skipped(play: Playing) -> None:
    p = play("r0")
    p.ask(stream=False)
    engine = await p.connects()
    engine.sends(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\ncontent-type: text/html\r\n\r\n")
    engine.answers(200, sse.whole(BOT_V1))
    assert p.client.body == sse.whole("acme/bot")


@pytest.mark.parametrize(
    "surplus",
    [
        b"garbage",
        b"HTTP/1.1 500 X\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}",
    ],
)
async def test_bytes_after_an_answer_are_dropped(play: Playing, surplus: bytes) -> None:
    p = play("r0")
    p.ask(stream=False)
    engine = await p.connects()
    body = sse.whole(BOT_V1)
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
    engine.sends(head + body + surplus)
    assert (p.client.status, p.client.body) == (200, sse.whole("acme/bot"))
    assert engine.dropped, "such a connection is not used again"


async def test_bytes_on_an_idle_connection_close_it(play: Playing) -> None:
    p = play("r0")
    p.ask(stream=False)
    engine = await p.connects()
    engine.answers(200, sse.whole(BOT_V1))
    engine.sends(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi")
    assert engine.dropped
    p.ask(stream=False)
    await p.connects()
    assert engine.requests[1:] == []


async def test_idle_connection_is_closed_before_the_engines_timeout(play: Playing) -> None:
    p = play("r0")
    p.ask(stream=False)
    engine = await p.connects()
    engine.answers(200, sse.whole(BOT_V1))
    p.rig.clock.forward(4.0)
    p.gateway.services.upstreams.sweep()
    p.rig.clock.forward(0.1)
    p.gateway.services.upstreams.sweep()
    assert engine.dropped


async def test_idle_connections_are_bounded(play: Playing) -> None:
    p = play("r0", limits=Limits(idle_upstreams_per_replica=2))
    exchanges = [p.ask(stream=False) for _ in range(4)]
    for _ in exchanges:
        await p.connects()
    for engine in p.engines:
        engine.answers(200, sse.whole(BOT_V1))
    assert [engine.dropped for engine in p.engines] == [False, False, True, True]


async def test_completion_stream_starts_with_its_first_token(play: Playing) -> None:
    p = play("r0")
    p.ask(route=COMPLETIONS)
    engine = await p.connects()
    engine.begins_stream()
    engine.streams(sse.text_chunk(BOT_V1, "h"))
    assert p.client.body == sse.text_chunk("acme/bot", "h")


async def test_endless_events_without_text_are_passed_on(play: Playing) -> None:
    p = play("r0")
    p.ask()
    engine = await p.connects()
    engine.begins_stream()
    for _ in range(500):
        engine.streams(sse.role(BOT_V1))
    assert p.client.status == 200, "held back is bounded"


async def test_head_and_first_event_in_one_read(play: Playing) -> None:
    p = play("r0")
    p.ask()
    engine = await p.connects()
    data = HELLO + END
    engine.sends(STREAM_HEAD + b"%x\r\n%b\r\n0\r\n\r\n" % (len(data), data))
    assert p.client.ended and p.client.body == PUBLIC_HELLO + PUBLIC_END


async def test_metrics_of_an_answer(play: Playing) -> None:
    p = play("r0")
    p.ask()
    finishes(await p.connects())
    sample: Any = p.gateway.services.metrics.registry.get_sample_value
    assert sample("shoal_tokens_total", {"pool": "smollm2-135m", "kind": "completion"}) == 2
    assert sample("shoal_ttft_seconds_count", {"pool": "smollm2-135m", "class": "interactive"}) == 1
