"""Chats with tools that the gateway calls: rounds, budgets, deadlines, and clients that leave."""

import asyncio
from typing import Any

import orjson
import pytest
from prometheus_client import generate_latest

from functions.api.snapshot import ConversationsPart
from tests.gateway import rig, sse
from tests.gateway.composing import LONG, SERVER_TOOL, WEATHER, MakePlay, Stage, call, content_of, counted
from tests.gateway.rig import BOT_V1

# server tools


async def test_a_tool_is_called_and_the_model_asked_again(play: MakePlay) -> None:
    stage = Stage(play, tools=(WEATHER,))
    client = stage.send_chat("weather?", tools=[SERVER_TOOL], header_x_request_id="req-9")
    asked = await stage.says(tool_calls=[call()])
    assert asked["tools"][0]["function"]["name"] == "weather" and client.status is None
    asked = await stage.says("It rains.")
    assert asked["messages"][-2]["tool_calls"][0]["id"] == "c1"
    assert asked["messages"][-1] == {"role": "tool", "tool_call_id": "c1", "content": "rain"}
    assert stage.tools.called == [("weather", b'{"city":"Paris"}')]
    assert client.status == 200 and content_of(client) == "It rains."
    assert orjson.loads(client.body)["usage"]["total_tokens"] == 24, "both rounds"
    assert client.headers[b"x-shoal-tools"] == b"calls=1;rounds=2" and client.headers[b"x-request-id"] == b"req-9"
    assert counted(stage, 'shoal_tool_calls_total{outcome="answered"}') == 1
    assert counted(stage, "shoal_tool_seconds_count") == counted(stage, "shoal_tool_rounds_count") == 1
    assert stage.play.quiet()


async def test_stream_is_made_from_the_last_round(play: MakePlay) -> None:
    stage = Stage(play, tools=(WEATHER,))
    client = stage.send_chat("weather?", stream=True, tools=[SERVER_TOOL], stream_options={"include_usage": True})
    assert (await stage.says(tool_calls=[call()])).get("stream") is None
    await stage.says("It rains.")
    assert client.ended and client.headers[b"content-type"] == b"text/event-stream"
    assert b"It rains." in client.body and client.body.endswith(sse.DONE) and b'"total_tokens":24' in client.body


async def test_calls_of_the_callers_tools_are_returned_to_the_caller(play: MakePlay) -> None:
    stage = Stage(play, tools=(WEATHER,))
    own = {"type": "function", "function": {"name": "own", "parameters": {}}}
    client = stage.send_chat("?", tools=[SERVER_TOOL, own])
    await stage.says(tool_calls=[call("own"), call(call_id="c2")])
    assert client.status == 200 and not stage.tools.called
    assert orjson.loads(client.body)["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "own"


async def test_exhausted_tool_budget_is_reported_to_the_model_and_rounds_are_bounded(play: MakePlay) -> None:
    stage = Stage(play, tools=(WEATHER,))
    client = stage.send_chat("?", tools=[SERVER_TOOL], tool_choice="required")
    results, choices = [], []
    for _ in range(8):
        asked = await stage.says(tool_calls=[call()])
        results.append(asked["messages"][-1].get("content"))
        choices.append(asked["tool_choice"])
    assert client.status == 200, "it asks no ninth time"
    assert len(stage.tools.called) == WEATHER.max_calls
    assert counted(stage, 'shoal_tool_calls_total{outcome="not_made"}') == 5
    assert results[1:3] == ["rain", "rain"] and "may not be called again" in str(results[3])
    assert choices[0] == "required" and choices[1] == "auto" and choices[-1] == "none"


@pytest.mark.parametrize("arguments", ["[]", "nope", '{"a":', ""])
async def test_invalid_tool_arguments_are_reported_to_the_model(play: MakePlay, arguments: str) -> None:
    stage = Stage(play, tools=(WEATHER,))
    stage.send_chat("?", tools=[SERVER_TOOL])
    await stage.says(tool_calls=[call(arguments=arguments)])
    assert "JSON object" in (await stage.says("ok"))["messages"][-1]["content"] and not stage.tools.called


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"tools": [{"type": "server", "name": "nothing"}]}, "no server tool"),
        ({"tools": [{"type": "server"}]}, "no server tool"),
        ({"tools": [SERVER_TOOL, {"type": "function", "function": {"name": "weather"}}]}, "Two tools"),
        ({"tools": [SERVER_TOOL], "n": 2}, "'n'"),
    ],
)
async def test_unsupported_tool_request_is_rejected_before_any_engine(
    play: MakePlay, fields: dict[str, Any], word: str
) -> None:
    stage = Stage(play, tools=(WEATHER,), context_overflow="summarise")
    client = stage.send_chat(messages=LONG, **fields)
    await stage.settle()
    assert client.status == 400 and word in client.error["message"] and not stage.play.dials


async def test_error_in_a_round_is_the_answer(play: MakePlay) -> None:
    stage = Stage(play, tools=(WEATHER,))
    client = stage.send_chat("?", tools=[SERVER_TOOL])
    await stage.says(tool_calls=[call()])
    (await stage.engine()).refuses(400, "maximum context length is 5")
    await stage.settle()
    assert client.status == 400 and client.error["code"] == "context_length_exceeded"


@pytest.mark.parametrize("stream", [False, True])
async def test_client_disconnect_ends_every_round(play: MakePlay, stream: bool) -> None:
    stage = Stage(play, tools=(WEATHER,), conversations=ConversationsPart())
    stage.send_chat("?", stream=stream, session_id="s")
    engine = await stage.engine()
    assert stage.answering is not None
    stage.answering.client_left()
    await stage.settle()
    assert engine.dropped and stage.play.quiet() and stage.answering.ended and not stage.shelf.values


async def test_a_client_that_stopped_reading_is_cut_off(play: MakePlay) -> None:
    stage = Stage(play, conversations=ConversationsPart())
    client = stage.send_chat("?", stream=True, session_id="s")
    engine = await stage.engine()
    engine.begins_stream()
    engine.streams(sse.role(BOT_V1), sse.token(BOT_V1, "half"))
    await stage.settle()
    assert stage.answering is not None
    stage.answering.pause()
    assert engine.paused
    stage.play.after(stage.play.rig.limits.write_stall_s + 1)
    await stage.settle()
    assert client.was_cut and engine.dropped and stage.play.quiet() and not stage.shelf.values


async def test_lost_stream_is_not_saved(play: MakePlay) -> None:
    stage = Stage(play, conversations=ConversationsPart())
    client = stage.send_chat("?", stream=True, session_id="s")
    engine = await stage.engine()
    engine.begins_stream()
    engine.streams(sse.role(BOT_V1), sse.token(BOT_V1, "half"))
    engine.dies()
    await stage.settle()
    assert client.ended and client.error["code"] == "upstream_lost" and sse.DONE not in client.body
    assert not stage.shelf.values


@pytest.mark.parametrize("fields", [{"session_id": "s"}, {"tools": [{"type": "server", "name": "nothing"}]}])
async def test_rejections_by_composition_are_counted(play: MakePlay, fields: dict[str, Any]) -> None:
    stage = Stage(play, tools=(WEATHER,), conversations=ConversationsPart())
    stage.shelf.away = True
    client = stage.send_chat("hi", **fields)
    await stage.settle()
    metrics = stage.play.gateway.services.metrics
    assert client.status in (400, 503)
    assert f'code="{client.status}"' in generate_latest(metrics.registry).decode()


async def test_deadline_applies_during_a_tool_call(play: MakePlay) -> None:
    stage = Stage(play, tools=(WEATHER,))
    stage.tools.hangs = True
    client = stage.send_chat("?", tools=[SERVER_TOOL], header_x_shoal_deadline_ms="50")
    await stage.says(tool_calls=[call()])
    async with asyncio.timeout(60):
        while client.status is None:
            await asyncio.sleep(0.01)
    assert client.status == 504 and client.error["code"] == "deadline_exceeded"
    assert stage.answering is not None and stage.answering.ended and stage.play.quiet()


async def test_tool_call_does_not_use_a_concurrency_slot(play: MakePlay) -> None:
    stage = Stage(play, {"quotas": (rig.quota(concurrent_requests=1),)}, tools=(WEATHER,))
    stage.tools.hangs = True
    waiting = stage.send_chat("?", tools=[SERVER_TOOL])
    await stage.says(tool_calls=[call()])
    assert stage.tools.called and len(stage.play.gateway.services.open_requests) == 0
    other = stage.send_chat("hi")
    await stage.says("hello")
    assert (other.status, waiting.status) == (200, None)


async def test_client_disconnect_ends_a_tool_call(play: MakePlay) -> None:
    stage = Stage(play, tools=(WEATHER,))
    stage.tools.hangs = True
    client = stage.send_chat("?", tools=[SERVER_TOOL])
    await stage.says(tool_calls=[call()])
    assert stage.tools.called and stage.answering is not None
    stage.answering.client_left()
    await stage.settle()
    assert stage.tools.left == 1 and client.status is None and stage.play.quiet()
    assert [len(engine.requests) for engine in stage.play.engines] == [1], "the model is not asked again"


@pytest.mark.parametrize("request_id", [f"req-{number}" for number in range(8)])
async def test_all_rounds_use_one_version_of_a_rollout(play: MakePlay, request_id: str) -> None:
    stage = Stage(play, rig.in_rollout(), tools=(WEATHER,))
    stage.send_chat("?", tools=[SERVER_TOOL], header_x_request_id=request_id)
    first = await stage.says(tool_calls=[call()])
    second = await stage.says(tool_calls=[call()])
    third = await stage.says("ok")
    assert first["model"] == second["model"] == third["model"]


async def test_each_round_is_timed_by_itself_within_one_deadline(play: MakePlay) -> None:
    """Otherwise the time that tools take would count as time to first token, in metrics and rollout evidence."""
    stage = Stage(play, tools=(WEATHER,))
    client = stage.send_chat("?", tools=[SERVER_TOOL], header_x_shoal_deadline_ms="30000")
    await stage.engine()
    stage.play.after(20.0)
    await stage.says(tool_calls=[call()])
    await stage.says("It rains.")
    assert b"ttft;dur=0.00" in client.headers[b"server-timing"]
    client = stage.send_chat("?", tools=[SERVER_TOOL], header_x_shoal_deadline_ms="30000")
    await stage.engine()
    stage.play.after(20.0)
    await stage.says(tool_calls=[call()])
    await stage.engine()
    stage.play.after(11.0)
    await stage.settle()
    assert client.status == 504 and client.error["code"] == "deadline_exceeded" and stage.play.quiet()


async def test_stream_made_from_an_answer_has_all_its_fields(play: MakePlay) -> None:
    stage = Stage(play, tools=(WEATHER,))
    client = stage.send_chat("?", stream=True, tools=[SERVER_TOOL])
    await stage.says("It rains.", reasoning="Clouds.")
    assert b'"reasoning":"Clouds."' in client.body and b'"content":"It rains."' in client.body
