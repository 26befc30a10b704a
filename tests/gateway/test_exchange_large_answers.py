"""Answers that are large because the request demanded it: no replica is blamed, and the work is charged."""

import pytest

from functions.api.snapshot import PoolEntry
from functions.decisions.admission.ticket import cost_tokens
from functions.gateway.intake.routes import COMPLETIONS, EMBEDDINGS, MESSAGES, RESPONSES_ROUTE, Route
from functions.gateway.limits import Limits
from tests.gateway import sse
from tests.gateway.engine_rig import Play
from tests.gateway.hello import HELLO, Playing
from tests.gateway.rig import BOT_V1, POOL
from tests.gateway.test_room_charges import charged, expected

LIMITS = Limits(event_bytes=4096, answer_bytes=16_384, quarantine_after_replicas=0)
REPLICAS = ("r0", "r1", "r2")
EMBEDDING_POOL = (PoolEntry(POOL, context_window_tokens=2048, task="embed"),)


def is_refused_for_its_size(p: Play) -> None:
    assert p.client.status == 400 and p.client.error["code"] == "answer_too_large"
    assert "Request less" in p.client.error["message"]


async def troubles_no_replica(p: Play) -> None:
    await p.settle()
    assert not p.dials, "no other replica is asked"
    assert p.gateway.services.fleet.ejected(POOL, p.rig.clock()) == set()
    assert p.engine.dropped and p.quiet()


async def test_first_event_over_the_bound_is_refused_without_blaming_the_replica(play: Playing) -> None:
    p = play(*REPLICAS, limits=LIMITS)
    p.ask(route=COMPLETIONS, echo=True, logprobs=20, max_tokens=1)
    engine = await p.connects()
    engine.begins_stream()
    engine.streams(b'data: {"id":"x","choices":[{"logprobs":"', b"9" * 4096)
    is_refused_for_its_size(p)
    await troubles_no_replica(p)


async def test_whole_answer_over_the_bound_is_refused_without_blaming_the_replica(play: Playing) -> None:
    p = play(*REPLICAS, limits=LIMITS)
    p.ask(stream=False, n=8, logprobs=True, top_logprobs=20)
    (await p.connects()).answers(200, sse.whole(BOT_V1, "x" * 16_384))
    is_refused_for_its_size(p)
    await troubles_no_replica(p)


async def test_later_event_over_the_bound_ends_the_stream_with_an_error(play: Playing) -> None:
    p = play(*REPLICAS, limits=LIMITS)
    p.ask()
    engine = await p.connects()
    engine.begins_stream()
    engine.streams(HELLO, b'data: {"id":"x","choices":[{"logprobs":"' + b"9" * 4096)
    assert p.client.status == 200 and p.client.error["code"] == "answer_too_large"
    await troubles_no_replica(p)


@pytest.mark.parametrize("stream", [True, False])
async def test_answer_over_the_bound_is_charged(play: Playing, stream: bool) -> None:
    p = play("r0", limits=LIMITS)
    p.ask(stream=stream, messages=[{"role": "user", "content": "word " * 1000}])
    engine = await p.connects()
    prompt_tokens, expected_tokens = expected(p)
    assert prompt_tokens > 500 and expected_tokens > 0
    if stream:
        engine.begins_stream()
        engine.streams(b"data: {" + b"9" * 4096)
    else:
        engine.answers(200, sse.whole(BOT_V1, "x" * 16_384))
    is_refused_for_its_size(p)
    made_tokens = 0 if stream else expected_tokens
    assert charged(p) == cost_tokens(prompt_tokens, made_tokens)
    settled = p.gateway.services.quotas.settled_by_engine
    assert (settled.input_tokens, settled.output_tokens) == (prompt_tokens, made_tokens)


@pytest.mark.parametrize("route", [RESPONSES_ROUTE, MESSAGES], ids=["responses", "messages"])
async def test_named_event_over_the_bound_is_refused_without_blaming_the_replica(play: Playing, route: Route) -> None:
    p = play(*REPLICAS, limits=LIMITS)
    content = {"input": "hi"} if route is RESPONSES_ROUTE else {"max_tokens": 10}
    p.ask(route=route, **content)
    engine = await p.connects()
    engine.begins_stream()
    engine.streams(b'event: response.created\ndata: {"a":"' + b"9" * (8 * 4096))
    assert p.client.status == 400 and b"Request less" in p.client.body
    await troubles_no_replica(p)


async def test_endless_error_body_ejects_the_replica(play: Playing) -> None:
    p = play(*REPLICAS, limits=LIMITS)
    p.ask(stream=False)
    engine = await p.connects()
    engine.answers(500, b"x" * 100_000)
    assert p.gateway.services.fleet.ejected(POOL, p.rig.clock()) == {engine.replica_id}


def embeddings(model: str, size_bytes: int) -> bytes:
    return sse.compact({"object": "list", "model": model, "data": [{"index": 0, "embedding": "A" * size_bytes}]})


async def test_embeddings_over_the_bound_are_refused_with_advice(
    play: Playing,
) -> None:
    p = play(*REPLICAS, limits=LIMITS, pools=EMBEDDING_POOL)
    p.ask(model=POOL, stream=False, route=EMBEDDINGS, input=["x"])
    (await p.connects()).answers(200, embeddings(POOL, 17_000))
    is_refused_for_its_size(p)
    assert "encoding_format 'base64' or fewer dimensions" in p.client.error["message"]
    await troubles_no_replica(p)


def test_maximum_inputs_of_1024_dimensions_fit_as_base64() -> None:
    number_bytes = 4 * 4 / 3
    assert Limits().pooling_inputs * 1024 * number_bytes < Limits().answer_bytes / 2
