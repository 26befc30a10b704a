"""Charges for an interrupted stream: the engine's count in the last event, however many tokens an event has."""

import pytest

from functions.gateway.intake.routes import COMPLETIONS, RESPONSES_ROUTE
from functions.gateway.request.answers import Renaming
from functions.gateway.request.relay import StreamRelay
from functions.gateway.request.request import Ended
from tests.gateway import sse
from tests.gateway.engine_rig import Play
from tests.gateway.hello import Playing
from tests.gateway.rig import BOT_V1, headers
from tests.gateway.test_ended import listening

TEXT = "four " * 1000
CHUNK = sse.chunk("acme/bot", {"content": TEXT})


async def broken_off(p: Play, *events: bytes, **fields: object) -> Ended:
    """Run a stream whose client reads all events and leaves before its end."""
    given = listening(p)
    exchange = p.ask(**fields)  # type: ignore[arg-type]
    engine = await p.connects()
    engine.begins_stream()
    for event in events:
        engine.streams(event)
    exchange.client_left()
    assert given[0].status == 499
    return given[0]


def of_choice(tokens: int, index: int = 0) -> bytes:
    return sse.counted(BOT_V1, TEXT, tokens, index)


async def test_events_of_a_thousand_tokens_are_charged_as_their_engine_counts(play: Playing) -> None:
    p = play("r0")
    events = [sse.role(BOT_V1), sse.counted(BOT_V1, "a", 1), *(of_choice(1 + 1000 * n) for n in range(1, 5))]
    ended = await broken_off(p, *events, stream_interval=16)
    assert ended.usage is not None and ended.usage.completion_tokens == 4001
    assert p.client.body == sse.role("acme/bot") + sse.chunk("acme/bot", {"content": "a"}) + CHUNK * 4


async def test_events_in_one_read_are_counted_alike(play: Playing) -> None:
    events = [of_choice(1 + 1000 * n) for n in range(5)]
    ended = await broken_off(p := play("r0"), events[0], b"".join(events[1:3]), events[3] + events[4])
    assert ended.usage is not None and ended.usage.completion_tokens == 4001
    assert p.client.body == CHUNK * 5


async def test_counts_of_all_choices_are_added(play: Playing) -> None:
    events = [of_choice(10, 0), of_choice(20, 1), of_choice(30, 0), of_choice(25, 1), of_choice(7, 2)]
    ended = await broken_off(play("r0"), *events, n=3)
    assert ended.usage is not None and ended.usage.completion_tokens == 30 + 25 + 7


async def test_caller_that_requests_counts_gets_them(play: Playing) -> None:
    p = play("r0")
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = [of_choice(5), of_choice(10), of_choice(15)]
    ended = await broken_off(p, *events, stream_options=options)
    assert ended.usage is not None and ended.usage.completion_tokens == 15
    assert p.client.body == b"".join(events).replace(BOT_V1.encode(), b"acme/bot")


async def test_fields_after_the_usage_are_kept(play: Playing) -> None:
    p = play("r0")
    last = of_choice(9)[:-3] + b',"system_fingerprint":"x"}\n\n'
    ended = await broken_off(p, of_choice(5), of_choice(7), last, last + of_choice(12))
    assert ended.usage is not None and ended.usage.completion_tokens == 12
    assert b'"usage"' not in p.client.body and p.client.body.count(b'"system_fingerprint":"x"') == 2


async def test_usage_in_answer_text_is_not_counted(play: Playing) -> None:
    p = play("r0")
    said = ',"usage":{"prompt_tokens":1,"completion_tokens":1}}\n\n'
    ended = await broken_off(p, sse.counted(BOT_V1, said, 7), sse.counted(BOT_V1, said, 14))
    assert ended.usage is not None and ended.usage.completion_tokens == 14
    assert p.client.body == sse.chunk("acme/bot", {"content": said}) * 2


async def test_without_counts_long_events_are_counted_by_their_text(play: Playing) -> None:
    long = sse.token(BOT_V1, "four " * 800)
    events = [sse.role(BOT_V1), *[sse.token(BOT_V1, "word ")] * 3, long, long]
    ended = await broken_off(play("r0"), *events)
    assert ended.usage is None and ended.delivered_tokens == 3 + 1000


async def test_without_counts_short_events_are_a_token_each(play: Playing) -> None:
    words = ["a", " remarkably", " so", " word", "\n", " internationali"] * 50
    ended = await broken_off(play("r0"), sse.role(BOT_V1), *(sse.token(BOT_V1, word) for word in words))
    assert ended.delivered_tokens == 300


async def test_log_probabilities_are_not_counted_as_text(play: Playing) -> None:
    figures = {"content": [{"token": "a", "logprob": -1.0, "bytes": [97], "top_logprobs": []}] * 20}
    event = sse.event(
        {"id": "1", "object": "x", "created": 1, "model": BOT_V1}
        | {"choices": [{"index": 0, "delta": {"content": "a"}, "logprobs": figures, "finish_reason": None}]}
    )
    ended = await broken_off(play("r0"), *[sse.token(BOT_V1, "b")] * 2, *[event] * 10)
    assert ended.delivered_tokens == 12 - 1


async def test_deltas_of_responses_are_counted_by_their_text(play: Playing) -> None:
    def delta(text: str) -> bytes:
        return b"event: response.output_text.delta\n" + sse.event({"type": "response.output_text.delta", "delta": text})

    p = play("r0")
    given = listening(p)
    body = sse.compact({"model": "acme/bot", "input": "hi", "stream": True})
    answering = p.gateway.handle(RESPONSES_ROUTE, headers(), body, p.client, p.rig.clock())
    engine = await p.connects()
    engine.begins_stream()
    engine.streams(delta("a"), delta("four " * 800), delta("b"))
    assert answering is not None
    answering.client_left()
    assert given[0].delivered_tokens == 1 + 500 + 1


async def test_reservation_grows_with_counted_tokens(play: Playing) -> None:
    p = play("r0")
    exchange = p.ask()
    engine = await p.connects()
    engine.begins_stream()
    for step in range(1, 18):
        engine.streams(sse.counted(BOT_V1, "x", 100 * step))
    assert exchange.entry.reservation.output_tokens >= 1600


@pytest.mark.parametrize("prompts", [1, 3])
async def test_interrupted_stream_is_charged_for_all_its_prompts(play: Playing, prompts: int) -> None:
    choice = {"index": 0, "text": "x", "logprobs": None, "finish_reason": None}
    usage = {"prompt_tokens": 50, "total_tokens": 55, "completion_tokens": 5}
    event = sse.event({"id": "1", "object": "x", "created": 1, "model": BOT_V1, "choices": [choice], "usage": usage})
    p = play("r0")
    ended = await broken_off(p, event, route=COMPLETIONS, prompt=[[7] * 50] * prompts)
    assert ended.usage is not None and ended.usage.prompt_tokens == 50 * prompts


def test_invalid_count_is_ignored() -> None:
    relay = StreamRelay(Renaming("a", "a"), False, 1024)
    relay.feed(sse.counted("a", "x", 3) + sse.counted("a", "x", 3).replace(b":3,", b':"3",'))
    assert relay.usage is not None and relay.usage.completion_tokens == 0 and relay.tokens >= 2
