"""Helpers of the composition tests: a stage with a shelf and played tools."""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import orjson
from prometheus_client import generate_latest

from functions.api.snapshot import ToolEntry
from functions.fleet.bus import BusUnavailable
from functions.gateway.chat.composition.composer import Composer
from functions.gateway.chat.composition.shared import ChatServices
from functions.gateway.chat.conversations import KeptConversations
from functions.gateway.chat.tools.calls import ToolAnswer, ToolCaller, ToolPolicy
from functions.gateway.chat.tools.declared import ToolCall
from functions.gateway.intake.routes import CHAT
from tests.gateway import rig, sse
from tests.gateway.engine_rig import Client, Engine, Play
from tests.gateway.rig import BOT_V1, PEPPER, headers

MakePlay = Callable[..., Play]
WEATHER = ToolEntry(
    "weather", "Says the weather.", "https://tools.example.com/weather", '{"type":"object"}', max_calls=2
)
SERVER_TOOL = {"type": "server", "name": "weather"}
LONG = [
    {"role": "system", "content": "be brief"},
    *({"role": role, "content": f"{turn} " + "word " * 200} for turn in range(12) for role in ("user", "assistant")),
    {"role": "user", "content": "and now?"},
]


class Shelf:
    """A conversation store in memory that can be unavailable."""

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
        """Do nothing: there is nothing to close."""

    def _check(self) -> None:
        if self.away:
            raise BusUnavailable("away")


class PlayedTools(ToolCaller):
    """Tool caller with scripted answers; the rules for which tools may be called are the real ones."""

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
        acme, globex = rig.snapshot().tenants
        self.play = play("r0", tenants=(msgspec.structs.replace(acme, **tenant), globex), **(sections or {}))
        self.shelf, self.tools = Shelf(), PlayedTools()
        kept = KeptConversations(self.shelf, PEPPER)
        gateway = self.play.gateway
        self.chat = ChatServices(gateway.services, gateway.handle, self.tools, kept)
        self.composer = Composer(self.chat)
        gateway.interceptors = (self.composer,)

    def send_chat(self, content: str = "hi", stream: bool = False, **fields: Any) -> Client:
        more = {name.removeprefix("header_"): fields.pop(name) for name in list(fields) if name.startswith("header_")}
        messages = fields.pop("messages", [{"role": "user", "content": content}])
        body = sse.compact({"model": "acme/bot", "stream": stream, "messages": messages, **fields})
        client = self.play.client = Client()
        self.answering = self.play.gateway.handle(CHAT, headers(**more), body, client, self.play.rig.clock())
        return client

    async def engine(self) -> Engine:
        """Return the engine that receives the next request, on a new or an existing connection."""
        for _ in range(50):
            await asyncio.sleep(0)
            if self.play.dials:
                return await self.play.connects()
            waiting = [engine for engine in self.play.engines if len(engine.requests) > getattr(engine, "seen", 0)]
            if waiting:
                return waiting[0]
        raise AssertionError("no engine was asked")

    async def says(self, content: str = "", **message: Any) -> dict[str, Any]:
        """Answer the current request as its engine and return the request's body."""
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
    """Return the value of the play's metric `name{labels}`."""
    lines = generate_latest(stage.play.gateway.services.metrics.registry).decode().splitlines()
    return next((float(line.rsplit(" ", 1)[1]) for line in lines if line.rsplit(" ", 1)[0] == what), 0.0)


def content_of(client: Client) -> str:
    return str(orjson.loads(client.body)["choices"][0]["message"]["content"])
