"""Composition: conversations, server tools and summaries, over exchanges with played engines."""

from typing import Any

import pytest

from functions.api.snapshot import ConversationsPart
from functions.gateway.chat.conversations import KeptConversations
from tests.gateway import rig, sse
from tests.gateway.composing import LONG, WEATHER, MakePlay, Stage, content_of, counted
from tests.gateway.rig import BOT_V1, PEPPER

# requests that are composed


@pytest.mark.parametrize(
    "tenant",
    [{}, {"conversations": ConversationsPart()}, {"tools": (WEATHER,)}, {"context_overflow": "summarise"}],
    ids=["nothing", "conversations", "tools", "summaries"],
)
async def test_chat_without_composition_is_one_exchange(play: MakePlay, tenant: dict[str, Any]) -> None:
    stage = Stage(play, **tenant)
    client = stage.send_chat()
    assert len(stage.play.gateway.services.open_requests) == 1
    await stage.says("hello")
    assert client.status == 200 and content_of(client) == "hello" and b"x-shoal-tools" not in client.headers


async def test_composition_is_enabled_per_tenant(play: MakePlay) -> None:
    stage = Stage(play, conversations=ConversationsPart())
    composer = stage.composer
    catalogue = stage.play.gateway.services.state.catalogue
    assert catalogue is not None
    acme, globex = catalogue.tenants
    assert composer.may_handle(catalogue, acme) and not composer.may_handle(catalogue, globex)


# conversations


async def test_session_recalls_its_conversation(play: MakePlay) -> None:
    stage = Stage(play, conversations=ConversationsPart())
    first = stage.send_chat("I am Ada.", header_x_session_id="s1")
    assert (await stage.says("Hello Ada."))["messages"] == [{"role": "user", "content": "I am Ada."}]
    assert first.headers[b"x-shoal-conversation"] == b"recalled=0"
    second = stage.send_chat("Who am I?", session_id="s1")
    asked = await stage.says("Ada.")
    assert [message["content"] for message in asked["messages"]] == ["I am Ada.", "Hello Ada.", "Who am I?"]
    assert second.headers[b"x-shoal-conversation"] == b"recalled=2" and content_of(second) == "Ada."
    assert stage.play.quiet()


@pytest.mark.parametrize("at_once", [False, True])
async def test_stream_is_saved_before_it_ends(play: MakePlay, at_once: bool) -> None:
    stage = Stage(play, conversations=ConversationsPart())
    client = stage.send_chat("I am Ada.", stream=True, header_x_session_id="s1")
    await stage.streams("Hello ", "Ada.", at_once=at_once)
    assert client.ended and client.body.endswith(sse.DONE) and client.body.count(sse.DONE) == 1
    stage.send_chat("Who am I?", header_x_session_id="s1")
    asked = await stage.says("Ada.")
    assert [message["content"] for message in asked["messages"]] == ["I am Ada.", "Hello Ada.", "Who am I?"]


async def test_conversations_are_separate_and_encrypted(play: MakePlay) -> None:
    stage = Stage(play, conversations=ConversationsPart())
    stage.send_chat("a secret", header_x_session_id="s1")
    await stage.says("kept")
    stage.send_chat("what?", header_x_session_id="s2")
    assert len((await stage.says("new"))["messages"]) == 1
    assert len(stage.shelf.values) == 2
    assert all(b"secret" not in value for value in stage.shelf.values.values())
    assert not any("s1" in name or "acme" in name for name in stage.shelf.values)
    one, other = stage.shelf.values
    stage.shelf.values[other] = stage.shelf.values[one]  # under another name it cannot be decrypted
    stage.send_chat("what?", header_x_session_id="s2")
    assert len((await stage.says("new"))["messages"]) == 1


async def test_without_the_bus_sessions_are_rejected_and_other_requests_served(play: MakePlay) -> None:
    stage = Stage(play, conversations=ConversationsPart())
    stage.shelf.away = True
    client = stage.send_chat("hi", header_x_session_id="s1")
    await stage.settle()
    assert client.status == 503 and client.error["code"] == "conversation_unavailable"
    assert b"retry-after" in client.headers
    client = stage.send_chat("hi")
    await stage.says("hello")
    assert client.status == 200


async def test_second_of_two_concurrent_turns_reports_not_kept(play: MakePlay) -> None:
    stage = Stage(play, conversations=ConversationsPart())
    client = stage.send_chat("hi", header_x_session_id="s1")
    await stage.engine()
    name = KeptConversations(stage.shelf, PEPPER)._name(rig.snapshot().tenants[0].name, "s1")
    stage.shelf.values[name] = b"of another"
    await stage.says("hello")
    assert client.status == 200 and client.headers[b"x-shoal-conversation"] == b"not-kept"
    assert stage.shelf.values[name] == b"of another"


async def test_a_new_system_message_replaces_the_old_one(play: MakePlay) -> None:
    stage = Stage(play, conversations=ConversationsPart())
    stage.send_chat(messages=[{"role": "system", "content": "old"}, {"role": "user", "content": "a"}], session_id="s")
    await stage.says("b")
    stage.send_chat(messages=[{"role": "system", "content": "new"}, {"role": "user", "content": "c"}], session_id="s")
    asked = await stage.says("d")
    assert [message["content"] for message in asked["messages"]] == ["new", "a", "b", "c"]


async def test_conversation_length_is_bounded(play: MakePlay) -> None:
    stage = Stage(play, conversations=ConversationsPart(max_tokens=100))
    for turn in range(6):
        stage.send_chat(f"{turn} " + "x" * 100, session_id="s")
        asked = await stage.says(f"{turn}")
    assert len(asked["messages"]) <= 7 and asked["messages"][-1]["content"].startswith("5")
    assert asked["messages"][0]["role"] == "user"


async def test_conversation_larger_than_the_window_keeps_its_latest_turns(play: MakePlay) -> None:
    """Otherwise every later turn would be rejected. What the caller sends must still fit by itself."""
    stage = Stage(play, conversations=ConversationsPart())
    for turn in range(8):
        client = stage.send_chat(f"{turn} " + "word " * 250, session_id="s", max_tokens=100)
        asked = (await stage.says(f"{turn}"))["messages"]
        assert client.headers[b"x-shoal-conversation"] == b"recalled=%d" % (len(asked) - 1)
    assert 3 <= len(asked) < 15 and asked[0]["role"] == "user" and asked[-1]["content"].startswith("7")
    client = stage.send_chat(messages=LONG, session_id="s", max_tokens=100)
    assert (await stage.says("ok"))["messages"] == LONG, "nothing of what was recalled fits beside it"
    assert client.headers[b"x-shoal-conversation"] == b"recalled=0"


async def test_recalled_turns_are_shortened_after_a_new_system_message(play: MakePlay) -> None:
    stage = Stage(play, conversations=ConversationsPart())
    for turn in range(6):
        new = [{"role": "system", "content": f"s{turn}"}, {"role": "user", "content": f"{turn} " + "word " * 250}]
        stage.send_chat(messages=new, session_id="s", max_tokens=100)
        asked = (await stage.says(f"{turn}"))["messages"]
    assert [message["content"] for message in asked if message["role"] == "system"] == ["s5"]
    assert asked[0]["content"] == "s5" and asked[1]["role"] == "user" and 4 <= len(asked) < 12


async def test_turn_with_store_false_is_not_stored(play: MakePlay) -> None:
    stage = Stage(play, conversations=ConversationsPart())
    stage.send_chat("I am Ada.", session_id="s")
    await stage.says("Hello Ada.")
    kept = dict(stage.shelf.values)
    for stream in (False, True):
        client = stage.send_chat("My pin is 1234.", session_id="s", store=False, stream=stream)
        asked = await (stage.streams("Noted.") if stream else stage.says("Noted."))
        assert len(asked["messages"]) == 3 and client.headers[b"x-shoal-conversation"] == b"recalled=2"
        assert stage.shelf.values == kept
    assert counted(stage, 'shoal_conversations_total{outcome="not_wished"}') == 2


async def test_each_tenant_has_its_own_shelf_that_does_not_name_it(play: MakePlay) -> None:
    stage = Stage(play, conversations=ConversationsPart())
    for session in ("s1", "s2"):
        stage.send_chat("hi", session_id=session)
        await stage.says("hello")
    assert len(stage.shelf.shelves) == 1 and len(stage.shelf.values) == 2
    kept, (acme, globex) = KeptConversations(stage.shelf, PEPPER), (tenant.name for tenant in rig.snapshot().tenants)
    (shelf,) = stage.shelf.shelves
    assert shelf == kept._shelf(acme) != kept._shelf(globex) and acme not in shelf
    assert not await kept.forget(globex, "s1"), "another tenant's session of that name is another session"
    assert await kept.forget(acme, "s1") and len(stage.shelf.values) == 1


async def test_turn_under_way_does_not_restore_a_deleted_conversation(play: MakePlay) -> None:
    stage = Stage(play, conversations=ConversationsPart())
    stage.send_chat("I am Ada.", session_id="s")
    await stage.says("Hello Ada.")
    client = stage.send_chat("Who am I?", session_id="s")
    await stage.engine()
    stage.shelf.values.clear()
    await stage.says("Ada.")
    assert client.headers[b"x-shoal-conversation"] == b"not-kept" and not stage.shelf.values


async def test_failed_saves_are_logged_once_a_minute(play: MakePlay, caplog: pytest.LogCaptureFixture) -> None:
    shelf = Stage(play).shelf
    clock, (acme, _) = rig.Clock(), (tenant.name for tenant in rig.snapshot().tenants)
    kept = KeptConversations(shelf, PEPPER, clock)
    conversation = await kept.load(acme, "s")
    shelf.away = True
    said = []
    for _ in range(5):
        messages = [{"role": "user", "content": "hi"}]
        assert await kept.save(conversation, messages, ConversationsPart()) == "not_saved"
        said.append(len(caplog.records))
        clock.forward(30.0)
    assert said == [1, 1, 2, 2, 3]


async def test_conversation_outcomes_are_counted(play: MakePlay) -> None:
    stage = Stage(play, conversations=ConversationsPart(max_tokens=100))
    for content in ("hi", "again", "x" * 1000):
        stage.send_chat(content, session_id="s")
        await stage.says("hello")
    (name,) = stage.shelf.values
    stage.shelf.values[name] = b"of another pepper, surely"
    stage.send_chat("hi", session_id="s")
    await stage.engine()
    stage.shelf.values[name] = b"of another request"
    await stage.says("hello")
    stage.shelf.away = True
    stage.send_chat("hi", session_id="s")
    await stage.settle()
    outcomes = ("began", "recalled", "unreadable", "unavailable", "kept", "too_long", "conflict")
    found = [counted(stage, f'shoal_conversations_total{{outcome="{outcome}"}}') for outcome in outcomes]
    assert found == [1, 2, 1, 1, 2, 1, 1]


async def test_turn_over_the_bound_drops_the_conversation(play: MakePlay) -> None:
    """A conversation has no gaps: if a turn cannot be kept whole, the conversation starts anew."""
    stage = Stage(play, conversations=ConversationsPart(max_tokens=100))
    for _ in range(3):
        stage.send_chat("x" * 1000, session_id="s")
        asked = await stage.says("too long")
        assert len(asked["messages"]) == 1


async def test_stream_with_invalid_json_is_passed_on_and_not_saved(play: MakePlay) -> None:
    stage = Stage(play, conversations=ConversationsPart())
    client = stage.send_chat("hi", stream=True, session_id="s")
    engine = await stage.engine()
    engine.begins_stream()
    engine.streams(sse.token(BOT_V1, "a"), b'data: {"choices":[{"logprob":NaN}]}\n\n', sse.finish(BOT_V1), sse.DONE)
    engine.ends_stream()
    await stage.settle()
    assert client.ended and client.body.endswith(sse.DONE) and b"NaN" in client.body
    assert not stage.shelf.values and stage.play.quiet()


# context overflow


async def test_slide_drops_the_oldest_turns(play: MakePlay) -> None:
    stage = Stage(play, context_overflow="slide")
    client = stage.send_chat(messages=LONG, max_tokens=100)
    asked = await stage.says("ok")
    kept = asked["messages"]
    assert kept[0] == LONG[0] and kept[-1] == LONG[-1] and 3 <= len(kept) < len(LONG)
    assert kept[1]["role"] == "user"
    lost = (len(LONG) - len(kept)) // 2
    assert client.headers[b"x-shoal-context"] == b"slid=%d" % lost


async def test_refuse_leaves_overflow_to_the_engine(play: MakePlay) -> None:
    stage = Stage(play)
    stage.send_chat(messages=LONG, max_tokens=100)
    assert (await stage.says("ok"))["messages"] == LONG


async def test_summarise_asks_for_a_summary_first(play: MakePlay) -> None:
    stage = Stage(play, context_overflow="summarise")
    client = stage.send_chat(messages=LONG, max_tokens=100)
    first = await stage.says("They counted words.")
    assert len(first["messages"]) == 1 and "Summarise" in first["messages"][0]["content"]
    asked = await stage.says("ok")
    assert asked["messages"][0] == LONG[0] and "They counted words." in asked["messages"][1]["content"]
    assert asked["messages"][-1] == LONG[-1] and len(asked["messages"]) < len(LONG)
    assert client.headers[b"x-shoal-context"].startswith(b"summarised=") and content_of(client) == "ok"


@pytest.mark.parametrize("said", ["They counted words.", "They counted. " * 300], ids=["short", "long"])
@pytest.mark.parametrize("words", range(150, 260, 10))
async def test_a_summary_fits_too(play: MakePlay, words: int, said: str) -> None:
    """However small the rest of the window is, the summary that the header reports is in the prompt."""
    turns = [
        {"role": role, "content": f"{turn} " + "word " * words} for turn in range(12) for role in ("user", "assistant")
    ]
    stage = Stage(play, context_overflow="summarise")
    client = stage.send_chat(messages=[LONG[0], *turns, LONG[-1]], max_tokens=100)
    await stage.says(said)
    asked = await stage.says("ok")
    assert client.headers[b"x-shoal-context"].startswith(b"summarised=")
    assert "They counted" in asked["messages"][1]["content"]


async def test_failed_summary_falls_back_to_slide(play: MakePlay) -> None:
    stage = Stage(play, context_overflow="summarise")
    client = stage.send_chat(messages=LONG, max_tokens=100)
    (await stage.engine()).refuses(400, "no")
    stage.play.engines[-1].seen = 1  # type: ignore[attr-defined]
    await stage.settle()
    asked = await stage.says("ok")
    assert len(asked["messages"]) < len(LONG) and client.headers[b"x-shoal-context"].startswith(b"slid=")
