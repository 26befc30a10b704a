"""Unusual conversations: named in any script, with very many parts or messages."""

from typing import Any

import httpx
import pytest

from functions.api.snapshot import ConversationsPart
from functions.gateway.chat.composition.shared import too_much
from functions.gateway.http.asgi import make_app
from functions.gateway.intake.json_body import values_in
from tests.gateway.composing import MakePlay, Stage
from tests.gateway.rig import ACME_KEY, limits

KEPT = ConversationsPart(max_tokens=200_000)


def parts(number: int) -> list[dict[str, str]]:
    return [{"type": "text", "text": "a"}] * number


async def test_conversation_named_in_a_body_is_deleted_by_header(play: MakePlay) -> None:
    stage = Stage(play, conversations=ConversationsPart())
    stage.send_chat("a secret", session_id="東京")
    await stage.says("kept")
    key, session = f"Bearer {ACME_KEY}".encode(), "東京".encode()
    transport = httpx.ASGITransport(app=make_app(stage.play.gateway, [stage.composer.add_routes]))
    async with httpx.AsyncClient(transport=transport, base_url="https://localhost") as client:
        headers = [(b"authorization", key), (b"x-session-id", session)]
        answer = await client.delete("/v1/conversations", headers=headers)
    assert answer.json() == {"id": "東京", "object": "conversation.deleted", "deleted": True}
    assert not stage.shelf.values


@pytest.mark.parametrize("overflow", ["refuse", "slide"])
async def test_turns_of_many_parts_do_not_block_the_next_turn(play: MakePlay, overflow: str) -> None:
    stage = Stage(play, conversations=KEPT, context_overflow=overflow)
    for turn in range(3):
        client = stage.send_chat(messages=[{"role": "user", "content": parts(20_000)}], session_id="s", max_tokens=5)
        asked = await stage.says(f"answer {turn}")
        assert client.status == 200 and asked["messages"][-1]["content"] == parts(20_000)
    client = stage.send_chat("hello", session_id="s", max_tokens=5)
    await stage.says("hi")
    assert client.status == 200


def messages(*values: int) -> list[dict[str, Any]]:
    """Return user messages with so many values each, of which 2 are the message itself and 1 is its content's array."""
    return [{"role": "user", "content": [{}] * (number - 4)} for number in values]


def test_turns_with_too_many_values_are_dropped() -> None:
    body: dict[str, Any] = {
        "model": "m",
        "a": {},
        "b": {},
        "c": {},
        "d": 1,
        "messages": messages(40_003, 40_003, 40_003),
    }
    assert values_in(body | {"messages": []}) == 11 and values_in(body["messages"][0]) == 40_003
    assert too_much(body, limits()) == range(1)
    assert not too_much(body | {"messages": body["messages"][1:]}, limits())


def test_oldest_of_too_many_messages_are_dropped() -> None:
    long = [{"role": role, "content": "a"} for _ in range(600) for role in ("user", "assistant")]
    assert not too_much({"messages": long[:1024] * 2}, limits())
    gone = too_much({"messages": long * 2}, limits())
    assert gone == range(352) and 2400 - len(gone) == 2048


def test_json_characters_in_strings_are_not_counted_as_values() -> None:
    body = {"messages": [{"role": "user", "content": "{[:z" * 100_000}]}
    assert not too_much(body, limits())
