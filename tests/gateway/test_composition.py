"""composition: conversations, server tools and summaries, over exchanges with played engines."""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import orjson
import pytest
from prometheus_client import generate_latest

from functions.api.snapshot import ConversationsPart, ToolEntry
from functions.fleet.bus import BusUnavailable
from functions.gateway.composition.composer import Composer
from functions.gateway.conversations import Conversations
from functions.gateway.routes import CHAT
from functions.gateway.tools.calls import ToolAnswer, ToolCaller, ToolPolicy
from functions.gateway.tools.declared import ToolCall
from tests.gateway import sse, world
from tests.gateway.engine_rig import Client, Engine, Play
from tests.gateway.world import BOT_V1, PEPPER, headers

MakePlay = Callable[..., Play]
WEATHER = ToolEntry(
    "weather", "Says the weather.", "https://tools.example.com/weather", '{"type":"object"}', max_calls=2
)
SERVER_TOOL = {"type": "server", "name": "weather"}


class Shelf:
    """A store in memory, which can be away."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.shelves: set[str] = set()
        self.away = False

    async def read(self, name: str) -> bytes | None:
        self._check()
        return self.values.get(name)

    async def replace(self, shelf: str, name: str, old: bytes | None, new: bytes, ttl_s: float) -> bool:
        self._check()
        self.shelves.add(shelf)
        if self.values.get(name) != old:
            return False
        self.values[name] = new
        return True

    async def delete(self, shelf: str, name: str) -> bool:
        self._check()
        return self.values.pop(name, None) is not None

    async def close(self) -> None:
        """Nothing is held."""

    def _check(self) -> None:
        if self.away:
            raise BusUnavailable("away")


class PlayedTools(ToolCaller):
    """Answers in the tools' place; the rules of who may be called when are the real ones."""

    def __init__(self) -> None:
        super().__init__(ToolPolicy())
        self.called: list[tuple[str, bytes]] = []
        self.hangs, self.left = False, 0

    async def call(self, tenant: str, tool: ToolEntry, call: ToolCall) -> ToolAnswer:
        if call.problem:
            return ToolAnswer(call.problem, "not_made")
        self.called.append((tool.name, call.arguments))
        if self.hangs:
            try:
                await asyncio.Event().wait()
            finally:
                self.left += 1
        return ToolAnswer("rain", "answered")


class Stage:
    """A play whose tenant acme has applications."""

    def __init__(self, play: MakePlay, sections: dict[str, Any] | None = None, **tenant: Any) -> None:
        acme, globex = world.snapshot().tenants
        self.play = play("r0", tenants=(msgspec.structs.replace(acme, **tenant), globex), **(sections or {}))
        self.shelf, self.tools = Shelf(), PlayedTools()
        kept = Conversations(self.shelf, PEPPER)
        self.play.gateway.composer = Composer(self.play.gateway, self.tools, kept)

    def ask(self, content: str = "hi", stream: bool = False, **fields: Any) -> Client:
        more = {name.removeprefix("header_"): fields.pop(name) for name in list(fields) if name.startswith("header_")}
        messages = fields.pop("messages", [{"role": "user", "content": content}])
        body = sse.compact({"model": "acme/bot", "stream": stream, "messages": messages, **fields})
        client = self.play.client = Client()
        self.answering = self.play.gateway.handle(CHAT, headers(**more), body, client, self.play.world.clock())
        return client

    async def engine(self) -> Engine:
        """Whoever is asked next, on a new or an old connection."""
        for _ in range(50):
            await asyncio.sleep(0)
            if self.play.dials:
                return await self.play.connects()
            waiting = [engine for engine in self.play.engines if len(engine.requests) > getattr(engine, "seen", 0)]
            if waiting:
                return waiting[0]
        raise AssertionError("no engine was asked")

    async def says(self, content: str = "", **message: Any) -> dict[str, Any]:
        """The engine that is asked answers; what it was asked."""
        engine = await self.engine()
        asked: dict[str, Any] = engine.requests[-1]
        engine.seen = len(engine.requests)  # type: ignore[attr-defined]
        said = {"role": "assistant", "content": content, **message}
        reason = "tool_calls" if "tool_calls" in message else "stop"
        choice = {"index": 0, "message": said, "finish_reason": reason}
        usage = {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12}
        answer = {"id": "c", "object": "chat.completion", "created": 1, "model": BOT_V1}
        engine.answers(200, sse.compact(answer | {"choices": [choice], "usage": usage}))
        await self.settle()
        return asked

    async def streams(self, *words: str, at_once: bool = False) -> dict[str, Any]:
        engine = await self.engine()
        asked: dict[str, Any] = engine.requests[-1]
        engine.seen = len(engine.requests)  # type: ignore[attr-defined]
        engine.begins_stream()
        events = [sse.role(BOT_V1), *(sse.token(BOT_V1, word) for word in words), sse.finish(BOT_V1), sse.DONE]
        engine.streams(*([b"".join(events)] if at_once else events))
        engine.ends_stream()
        await self.settle()
        return asked

    async def settle(self) -> None:
        for _ in range(20):
            await asyncio.sleep(0)


def call(name: str = "weather", arguments: str = '{"city":"Paris"}', call_id: str = "c1") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def counted(stage: Stage, what: str) -> float:
    """A metric of the play's, `name{labels}`."""
    lines = generate_latest(stage.play.gateway.metrics.registry).decode().splitlines()
    return next((float(line.rsplit(" ", 1)[1]) for line in lines if line.rsplit(" ", 1)[0] == what), 0.0)


def content_of(client: Client) -> str:
    return str(orjson.loads(client.body)["choices"][0]["message"]["content"])


# which requests


@pytest.mark.parametrize(
    "tenant",
    [{}, {"conversations": ConversationsPart()}, {"tools": (WEATHER,)}, {"context_overflow": "summarise"}],
    ids=["nothing", "conversations", "tools", "summaries"],
)
async def test_a_chat_that_needs_nothing_of_it_is_one_exchange(play: MakePlay, tenant: dict[str, Any]) -> None:
    stage = Stage(play, **tenant)
    client = stage.ask()
    assert stage.play.gateway.open_exchanges == 1
    await stage.says("hello")
    assert client.status == 200 and content_of(client) == "hello" and b"x-shoal-tools" not in client.headers


async def test_a_tenants_features_are_its_own(play: MakePlay) -> None:
    stage = Stage(play, conversations=ConversationsPart())
    composer = stage.play.gateway.composer
    catalogue = stage.play.gateway.catalogue
    assert composer is not None and catalogue is not None
    acme, globex = catalogue.tenants
    assert composer.concerns(catalogue, acme) and not composer.concerns(catalogue, globex)


# conversations


async def test_a_session_goes_on_where_it_was(play: MakePlay) -> None:
    stage = Stage(play, conversations=ConversationsPart())
    first = stage.ask("I am Ada.", header_x_session_id="s1")
    assert (await stage.says("Hello Ada."))["messages"] == [{"role": "user", "content": "I am Ada."}]
    assert first.headers[b"x-shoal-conversation"] == b"recalled=0"
    second = stage.ask("Who am I?", session_id="s1")
    asked = await stage.says("Ada.")
    assert [message["content"] for message in asked["messages"]] == ["I am Ada.", "Hello Ada.", "Who am I?"]
    assert second.headers[b"x-shoal-conversation"] == b"recalled=2" and content_of(second) == "Ada."
    assert stage.play.quiet()


@pytest.mark.parametrize("at_once", [False, True])
async def test_a_stream_is_remembered_before_it_ends(play: MakePlay, at_once: bool) -> None:
    stage = Stage(play, conversations=ConversationsPart())
    client = stage.ask("I am Ada.", stream=True, header_x_session_id="s1")
    await stage.streams("Hello ", "Ada.", at_once=at_once)
    assert client.ended and client.body.endswith(sse.DONE) and client.body.count(sse.DONE) == 1
    stage.ask("Who am I?", header_x_session_id="s1")
    asked = await stage.says("Ada.")
    assert [message["content"] for message in asked["messages"]] == ["I am Ada.", "Hello Ada.", "Who am I?"]


async def test_sessions_and_tenants_are_apart_and_sealed(play: MakePlay) -> None:
    stage = Stage(play, conversations=ConversationsPart())
    stage.ask("a secret", header_x_session_id="s1")
    await stage.says("kept")
    stage.ask("what?", header_x_session_id="s2")
    assert len((await stage.says("new"))["messages"]) == 1
    assert len(stage.shelf.values) == 2
    assert all(b"secret" not in value for value in stage.shelf.values.values())
    assert not any("s1" in name or "acme" in name for name in stage.shelf.values)
    one, other = stage.shelf.values
    stage.shelf.values[other] = stage.shelf.values[one]  # put under another name, it does not open
    stage.ask("what?", header_x_session_id="s2")
    assert len((await stage.says("new"))["messages"]) == 1


async def test_without_the_bus_a_session_is_refused_and_the_rest_served(play: MakePlay) -> None:
    stage = Stage(play, conversations=ConversationsPart())
    stage.shelf.away = True
    client = stage.ask("hi", header_x_session_id="s1")
    await stage.settle()
    assert client.status == 503 and client.error["code"] == "conversation_unavailable"
    assert b"retry-after" in client.headers
    client = stage.ask("hi")
    await stage.says("hello")
    assert client.status == 200


async def test_of_two_at_once_the_later_says_that_it_is_not_kept(play: MakePlay) -> None:
    stage = Stage(play, conversations=ConversationsPart())
    client = stage.ask("hi", header_x_session_id="s1")
    await stage.engine()
    name = Conversations(stage.shelf, PEPPER)._name(world.snapshot().tenants[0].name, "s1")
    stage.shelf.values[name] = b"of another"
    await stage.says("hello")
    assert client.status == 200 and client.headers[b"x-shoal-conversation"] == b"not-kept"
    assert stage.shelf.values[name] == b"of another"


async def test_a_new_system_message_replaces_the_old_one(play: MakePlay) -> None:
    stage = Stage(play, conversations=ConversationsPart())
    stage.ask(messages=[{"role": "system", "content": "old"}, {"role": "user", "content": "a"}], session_id="s")
    await stage.says("b")
    stage.ask(messages=[{"role": "system", "content": "new"}, {"role": "user", "content": "c"}], session_id="s")
    asked = await stage.says("d")
    assert [message["content"] for message in asked["messages"]] == ["new", "a", "b", "c"]


async def test_a_conversation_is_bounded(play: MakePlay) -> None:
    stage = Stage(play, conversations=ConversationsPart(max_tokens=100))
    for turn in range(6):
        stage.ask(f"{turn} " + "x" * 100, session_id="s")
        asked = await stage.says(f"{turn}")
    assert len(asked["messages"]) <= 7 and asked["messages"][-1]["content"].startswith("5")
    assert asked["messages"][0]["role"] == "user"


async def test_a_conversation_that_outgrew_the_window_goes_on_with_its_latest_turns(play: MakePlay) -> None:
    """Else it would be refused for ever. What the caller sends is still its own affair to make fit."""
    stage = Stage(play, conversations=ConversationsPart())
    for turn in range(8):
        client = stage.ask(f"{turn} " + "word " * 250, session_id="s", max_tokens=100)
        asked = (await stage.says(f"{turn}"))["messages"]
        assert client.headers[b"x-shoal-conversation"] == b"recalled=%d" % (len(asked) - 1)
    assert 3 <= len(asked) < 15 and asked[0]["role"] == "user" and asked[-1]["content"].startswith("7")
    client = stage.ask(messages=LONG, session_id="s", max_tokens=100)
    assert (await stage.says("ok"))["messages"] == LONG, "nothing of what was recalled fits beside it"
    assert client.headers[b"x-shoal-conversation"] == b"recalled=0"


async def test_what_was_recalled_is_shortened_behind_a_new_system_message(play: MakePlay) -> None:
    stage = Stage(play, conversations=ConversationsPart())
    for turn in range(6):
        new = [{"role": "system", "content": f"s{turn}"}, {"role": "user", "content": f"{turn} " + "word " * 250}]
        stage.ask(messages=new, session_id="s", max_tokens=100)
        asked = (await stage.says(f"{turn}"))["messages"]
    assert [message["content"] for message in asked if message["role"] == "system"] == ["s5"]
    assert asked[0]["content"] == "s5" and asked[1]["role"] == "user" and 4 <= len(asked) < 12


async def test_who_does_not_want_a_turn_stored_is_heeded(play: MakePlay) -> None:
    stage = Stage(play, conversations=ConversationsPart())
    stage.ask("I am Ada.", session_id="s")
    await stage.says("Hello Ada.")
    kept = dict(stage.shelf.values)
    for stream in (False, True):
        client = stage.ask("My pin is 1234.", session_id="s", store=False, stream=stream)
        asked = await (stage.streams("Noted.") if stream else stage.says("Noted."))
        assert len(asked["messages"]) == 3 and client.headers[b"x-shoal-conversation"] == b"recalled=2"
        assert stage.shelf.values == kept
    assert counted(stage, 'shoal_conversations_total{outcome="not_wished"}') == 2


async def test_each_tenant_has_a_shelf_of_its_own_that_does_not_name_it(play: MakePlay) -> None:
    stage = Stage(play, conversations=ConversationsPart())
    for session in ("s1", "s2"):
        stage.ask("hi", session_id=session)
        await stage.says("hello")
    assert len(stage.shelf.shelves) == 1 and len(stage.shelf.values) == 2
    kept, (acme, globex) = Conversations(stage.shelf, PEPPER), (tenant.name for tenant in world.snapshot().tenants)
    (shelf,) = stage.shelf.shelves
    assert shelf == kept._shelf(acme) != kept._shelf(globex) and acme not in shelf
    assert not await kept.forget(globex, "s1"), "another tenant's session of that name is another session"
    assert await kept.forget(acme, "s1") and len(stage.shelf.values) == 1


async def test_a_turn_under_way_does_not_bring_back_what_was_deleted(play: MakePlay) -> None:
    stage = Stage(play, conversations=ConversationsPart())
    stage.ask("I am Ada.", session_id="s")
    await stage.says("Hello Ada.")
    client = stage.ask("Who am I?", session_id="s")
    await stage.engine()
    stage.shelf.values.clear()
    await stage.says("Ada.")
    assert client.headers[b"x-shoal-conversation"] == b"not-kept" and not stage.shelf.values


async def test_what_became_of_conversations_is_counted(play: MakePlay) -> None:
    stage = Stage(play, conversations=ConversationsPart(max_tokens=100))
    for content in ("hi", "again", "x" * 1000):
        stage.ask(content, session_id="s")
        await stage.says("hello")
    (name,) = stage.shelf.values
    stage.shelf.values[name] = b"of another pepper, surely"
    stage.ask("hi", session_id="s")
    await stage.engine()
    stage.shelf.values[name] = b"of another request"
    await stage.says("hello")
    stage.shelf.away = True
    stage.ask("hi", session_id="s")
    await stage.settle()
    outcomes = ("began", "recalled", "unreadable", "unavailable", "kept", "too_long", "conflict")
    found = [counted(stage, f'shoal_conversations_total{{outcome="{outcome}"}}') for outcome in outcomes]
    assert found == [1, 2, 1, 1, 2, 1, 1]


async def test_a_turn_over_the_bound_is_not_kept_and_what_was_before_goes_with_it(play: MakePlay) -> None:
    """A conversation never has gaps: what cannot be kept whole begins anew."""
    stage = Stage(play, conversations=ConversationsPart(max_tokens=100))
    for _ in range(3):
        stage.ask("x" * 1000, session_id="s")
        asked = await stage.says("too long")
        assert len(asked["messages"]) == 1


async def test_a_stream_that_is_no_json_within_is_passed_on_and_not_remembered(play: MakePlay) -> None:
    stage = Stage(play, conversations=ConversationsPart())
    client = stage.ask("hi", stream=True, session_id="s")
    engine = await stage.engine()
    engine.begins_stream()
    engine.streams(sse.token(BOT_V1, "a"), b'data: {"choices":[{"logprob":NaN}]}\n\n', sse.finish(BOT_V1), sse.DONE)
    engine.ends_stream()
    await stage.settle()
    assert client.ended and client.body.endswith(sse.DONE) and b"NaN" in client.body
    assert not stage.shelf.values and stage.play.quiet()


# server tools


async def test_a_tool_is_called_and_the_model_asked_again(play: MakePlay) -> None:
    stage = Stage(play, tools=(WEATHER,))
    client = stage.ask("weather?", tools=[SERVER_TOOL], header_x_request_id="req-9")
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


async def test_a_stream_is_made_of_the_last_answer(play: MakePlay) -> None:
    stage = Stage(play, tools=(WEATHER,))
    client = stage.ask("weather?", stream=True, tools=[SERVER_TOOL], stream_options={"include_usage": True})
    assert (await stage.says(tool_calls=[call()])).get("stream") is None
    await stage.says("It rains.")
    assert client.ended and client.headers[b"content-type"] == b"text/event-stream"
    assert b"It rains." in client.body and client.body.endswith(sse.DONE) and b'"total_tokens":24' in client.body


async def test_calls_of_the_callers_own_tools_are_the_callers(play: MakePlay) -> None:
    stage = Stage(play, tools=(WEATHER,))
    own = {"type": "function", "function": {"name": "own", "parameters": {}}}
    client = stage.ask("?", tools=[SERVER_TOOL, own])
    await stage.says(tool_calls=[call("own"), call(call_id="c2")])
    assert client.status == 200 and not stage.tools.called
    assert orjson.loads(client.body)["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "own"


async def test_budgets_are_told_to_the_model_and_rounds_end(play: MakePlay) -> None:
    stage = Stage(play, tools=(WEATHER,))
    client = stage.ask("?", tools=[SERVER_TOOL], tool_choice="required")
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
async def test_arguments_that_are_none_are_told_to_the_model(play: MakePlay, arguments: str) -> None:
    stage = Stage(play, tools=(WEATHER,))
    stage.ask("?", tools=[SERVER_TOOL])
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
async def test_what_cannot_be_offered_is_refused_before_anyone_is_asked(
    play: MakePlay, fields: dict[str, Any], word: str
) -> None:
    stage = Stage(play, tools=(WEATHER,), context_overflow="summarise")
    client = stage.ask(messages=LONG, **fields)
    await stage.settle()
    assert client.status == 400 and word in client.error["message"] and not stage.play.dials


async def test_an_error_of_a_round_is_the_answer(play: MakePlay) -> None:
    stage = Stage(play, tools=(WEATHER,))
    client = stage.ask("?", tools=[SERVER_TOOL])
    await stage.says(tool_calls=[call()])
    (await stage.engine()).refuses(400, "maximum context length is 5")
    await stage.settle()
    assert client.status == 400 and client.error["code"] == "context_length_exceeded"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_ends_every_round(play: MakePlay, stream: bool) -> None:
    stage = Stage(play, tools=(WEATHER,), conversations=ConversationsPart())
    stage.ask("?", stream=stream, session_id="s")
    engine = await stage.engine()
    assert stage.answering is not None
    stage.answering.client_left()
    await stage.settle()
    assert engine.dropped and stage.play.quiet() and stage.answering.ended and not stage.shelf.values


async def test_a_client_that_stopped_reading_is_cut_off(play: MakePlay) -> None:
    stage = Stage(play, conversations=ConversationsPart())
    client = stage.ask("?", stream=True, session_id="s")
    engine = await stage.engine()
    engine.begins_stream()
    engine.streams(sse.role(BOT_V1), sse.token(BOT_V1, "half"))
    await stage.settle()
    assert stage.answering is not None
    stage.answering.pause()
    assert engine.paused
    stage.play.after(stage.play.world.limits.write_stall_s + 1)
    await stage.settle()
    assert client.was_cut and engine.dropped and stage.play.quiet() and not stage.shelf.values


async def test_a_lost_stream_is_not_remembered(play: MakePlay) -> None:
    stage = Stage(play, conversations=ConversationsPart())
    client = stage.ask("?", stream=True, session_id="s")
    engine = await stage.engine()
    engine.begins_stream()
    engine.streams(sse.role(BOT_V1), sse.token(BOT_V1, "half"))
    engine.dies()
    await stage.settle()
    assert client.ended and client.error["code"] == "upstream_lost" and sse.DONE not in client.body
    assert not stage.shelf.values


@pytest.mark.parametrize("fields", [{"session_id": "s"}, {"tools": [{"type": "server", "name": "nothing"}]}])
async def test_what_a_composition_refuses_is_counted(play: MakePlay, fields: dict[str, Any]) -> None:
    stage = Stage(play, tools=(WEATHER,), conversations=ConversationsPart())
    stage.shelf.away = True
    client = stage.ask("hi", **fields)
    await stage.settle()
    metrics = stage.play.gateway.metrics
    assert client.status in (400, 503)
    assert f'code="{client.status}"' in generate_latest(metrics.registry).decode()


async def test_the_deadline_holds_while_a_tool_is_called(play: MakePlay) -> None:
    stage = Stage(play, tools=(WEATHER,))
    stage.tools.hangs = True
    client = stage.ask("?", tools=[SERVER_TOOL], header_x_shoal_deadline_ms="50")
    await stage.says(tool_calls=[call()])
    async with asyncio.timeout(60):
        while client.status is None:
            await asyncio.sleep(0.01)
    assert client.status == 504 and client.error["code"] == "deadline_exceeded"
    assert stage.answering is not None and stage.answering.ended and stage.play.quiet()


async def test_while_a_tool_is_called_none_of_the_tenants_places_is_taken(play: MakePlay) -> None:
    stage = Stage(play, {"quotas": (world.quota(concurrent_requests=1),)}, tools=(WEATHER,))
    stage.tools.hangs = True
    waiting = stage.ask("?", tools=[SERVER_TOOL])
    await stage.says(tool_calls=[call()])
    assert stage.tools.called and stage.play.gateway.open_exchanges == 0
    other = stage.ask("hi")
    await stage.says("hello")
    assert (other.status, waiting.status) == (200, None)


async def test_a_client_that_leaves_while_a_tool_is_called_ends_it(play: MakePlay) -> None:
    stage = Stage(play, tools=(WEATHER,))
    stage.tools.hangs = True
    client = stage.ask("?", tools=[SERVER_TOOL])
    await stage.says(tool_calls=[call()])
    assert stage.tools.called and stage.answering is not None
    stage.answering.client_left()
    await stage.settle()
    assert stage.tools.left == 1 and client.status is None and stage.play.quiet()
    assert [len(engine.requests) for engine in stage.play.engines] == [1], "the model is not asked again"


@pytest.mark.parametrize("request_id", [f"req-{number}" for number in range(8)])
async def test_a_rollout_answers_all_rounds_with_one_version(play: MakePlay, request_id: str) -> None:
    stage = Stage(play, world.in_rollout(), tools=(WEATHER,))
    stage.ask("?", tools=[SERVER_TOOL], header_x_request_id=request_id)
    first = await stage.says(tool_calls=[call()])
    second = await stage.says(tool_calls=[call()])
    third = await stage.says("ok")
    assert first["model"] == second["model"] == third["model"]


async def test_each_round_is_timed_by_itself_within_one_deadline(play: MakePlay) -> None:
    """Else the time that tools take would be the models' time to first token, in metrics and in rollouts' evidence."""
    stage = Stage(play, tools=(WEATHER,))
    client = stage.ask("?", tools=[SERVER_TOOL], header_x_shoal_deadline_ms="30000")
    await stage.engine()
    stage.play.after(20.0)
    await stage.says(tool_calls=[call()])
    await stage.says("It rains.")
    assert b"ttft;dur=0.00" in client.headers[b"server-timing"]
    client = stage.ask("?", tools=[SERVER_TOOL], header_x_shoal_deadline_ms="30000")
    await stage.engine()
    stage.play.after(20.0)
    await stage.says(tool_calls=[call()])
    await stage.engine()
    stage.play.after(11.0)
    await stage.settle()
    assert client.status == 504 and client.error["code"] == "deadline_exceeded" and stage.play.quiet()


async def test_a_stream_made_of_an_answer_has_all_of_it(play: MakePlay) -> None:
    stage = Stage(play, tools=(WEATHER,))
    client = stage.ask("?", stream=True, tools=[SERVER_TOOL])
    await stage.says("It rains.", reasoning="Clouds.")
    assert b'"reasoning":"Clouds."' in client.body and b'"content":"It rains."' in client.body


# too long


LONG = [
    {"role": "system", "content": "be brief"},
    *({"role": role, "content": f"{turn} " + "word " * 200} for turn in range(12) for role in ("user", "assistant")),
    {"role": "user", "content": "and now?"},
]


async def test_slide_drops_the_oldest_turns(play: MakePlay) -> None:
    stage = Stage(play, context_overflow="slide")
    client = stage.ask(messages=LONG, max_tokens=100)
    asked = await stage.says("ok")
    kept = asked["messages"]
    assert kept[0] == LONG[0] and kept[-1] == LONG[-1] and 3 <= len(kept) < len(LONG)
    assert kept[1]["role"] == "user"
    lost = (len(LONG) - len(kept)) // 2
    assert client.headers[b"x-shoal-context"] == b"slid=%d" % lost


async def test_refuse_leaves_it_to_the_engine(play: MakePlay) -> None:
    stage = Stage(play)
    stage.ask(messages=LONG, max_tokens=100)
    assert (await stage.says("ok"))["messages"] == LONG


async def test_summarise_asks_for_a_summary_first(play: MakePlay) -> None:
    stage = Stage(play, context_overflow="summarise")
    client = stage.ask(messages=LONG, max_tokens=100)
    first = await stage.says("They counted words.")
    assert len(first["messages"]) == 1 and "Summarise" in first["messages"][0]["content"]
    asked = await stage.says("ok")
    assert asked["messages"][0] == LONG[0] and "They counted words." in asked["messages"][1]["content"]
    assert asked["messages"][-1] == LONG[-1] and len(asked["messages"]) < len(LONG)
    assert client.headers[b"x-shoal-context"].startswith(b"summarised=") and content_of(client) == "ok"


@pytest.mark.parametrize("said", ["They counted words.", "They counted. " * 300], ids=["short", "long"])
@pytest.mark.parametrize("words", range(150, 260, 10))
async def test_a_summary_fits_too(play: MakePlay, words: int, said: str) -> None:
    """Whatever is left of the window: what the header says was summarised is there."""
    turns = [
        {"role": role, "content": f"{turn} " + "word " * words} for turn in range(12) for role in ("user", "assistant")
    ]
    stage = Stage(play, context_overflow="summarise")
    client = stage.ask(messages=[LONG[0], *turns, LONG[-1]], max_tokens=100)
    await stage.says(said)
    asked = await stage.says("ok")
    assert client.headers[b"x-shoal-context"].startswith(b"summarised=")
    assert "They counted" in asked["messages"][1]["content"]


async def test_without_a_summary_it_slides(play: MakePlay) -> None:
    stage = Stage(play, context_overflow="summarise")
    client = stage.ask(messages=LONG, max_tokens=100)
    (await stage.engine()).refuses(400, "no")
    stage.play.engines[-1].seen = 1  # type: ignore[attr-defined]
    await stage.settle()
    asked = await stage.says("ok")
    assert len(asked["messages"]) < len(LONG) and client.headers[b"x-shoal-context"].startswith(b"slid=")
