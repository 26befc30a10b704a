"""Conversation key of a request: equal for all turns of a chat, different between tenants, read from a bounded part."""

from typing import Any

import pytest

from functions.api.ids import TenantId
from functions.decisions.routing.sessions import HASH_BYTES, MARK_BYTES, session_hash
from functions.gateway.intake.affinity import conversation_of
from functions.gateway.intake.lengths import OutputFields
from functions.gateway.intake.routes import CHAT_OUTPUT

ACME, GLOBEX = TenantId("acme"), TenantId("globex")
COMPLETIONS_OUTPUT = OutputFields("prompt", ("max_tokens",))
SYSTEM = {"role": "system", "content": "You are a pirate. " * 200}
HELLO = {"role": "user", "content": "Where is the gold?"}
ANSWER = {"role": "assistant", "content": "Buried."}


def chat(*messages: dict[str, Any], model: str = "base", **fields: Any) -> dict[str, Any]:
    return {"model": model, "messages": list(messages), **fields}


def key(body: dict[str, Any], tenant: TenantId = ACME, session: str | None = None) -> bytes | None:
    return conversation_of(tenant, session, body, CHAT_OUTPUT)[0]


def test_every_turn_of_a_chat_has_the_key_of_its_first() -> None:
    first = chat(SYSTEM, HELLO)
    later = chat(SYSTEM, HELLO, ANSWER, {"role": "user", "content": "Where?"})
    assert key(first) == key(later)
    assert (conversation_of(ACME, None, first, CHAT_OUTPUT)[1], conversation_of(ACME, None, later, CHAT_OUTPUT)[1]) == (
        True,
        False,
    )


@pytest.mark.parametrize(
    "other",
    [
        chat(SYSTEM, {"role": "user", "content": "Where is the rum?"}),
        chat({"role": "system", "content": "You are a parrot."}, HELLO),
        chat(SYSTEM, HELLO, model="acme/bot"),
        chat(HELLO),
        chat(SYSTEM, HELLO, system="Anthropic's, beside the messages"),
        chat(SYSTEM, {"role": "user", "content": [{"type": "text", "text": "Where is the rum?"}]}),
    ],
)
def test_other_beginning_is_another_conversation(other: dict[str, Any]) -> None:
    assert key(other) != key(chat(SYSTEM, HELLO))


def test_content_in_parts_is_distinguished() -> None:
    def parts(text: str) -> dict[str, Any]:
        return chat({"role": "user", "content": [{"type": "text", "text": text}, {"type": "image_url"}]})

    assert key(parts("one")) == key(parts("one")) != key(parts("two"))


def test_key_differs_between_tenants_and_starts_with_the_tenant_mark() -> None:
    ours, theirs = key(chat(HELLO)), key(chat(HELLO), GLOBEX)
    assert ours is not None and theirs is not None and ours != theirs
    assert len(ours) == HASH_BYTES and ours[:MARK_BYTES] == session_hash(ACME, "any")[:MARK_BYTES]


def test_named_session_is_the_conversation_whatever_its_messages() -> None:
    assert key(chat(HELLO), session="s1") == key(chat(SYSTEM), session="s1") == session_hash(ACME, "s1")
    assert conversation_of(ACME, "s1", chat(HELLO), CHAT_OUTPUT)[:2] == (session_hash(ACME, "s1"), True)
    assert conversation_of(ACME, "s1", chat(HELLO, ANSWER, HELLO), CHAT_OUTPUT)[:2] == (session_hash(ACME, "s1"), False)


@pytest.mark.parametrize(
    ("messages", "new"),
    [
        ((SYSTEM, HELLO, ANSWER, {"role": "user", "content": "Where?"}), "Buried.Where?"),
        ((SYSTEM, HELLO, ANSWER, HELLO, ANSWER, {"role": "user", "content": "Où?"}), "Buried.Où?"),
        ((HELLO, ANSWER, {"role": "user", "content": [{"type": "text", "text": "And"}, {"type": "image_url"}]}),
         "Buried.And"),
        ((HELLO, {"role": "assistant", "tool_calls": []}, {"role": "tool", "content": "a map"}), "a map"),
        ((HELLO, {"role": "assistant", "content": None}, {"role": "user", "content": "\ud800"}), "\ud800"),
    ],
)  # fmt: skip
def test_new_bytes_are_those_since_the_last_request_answer_included(
    messages: tuple[dict[str, Any], ...], new: str
) -> None:
    """The replica that answered has the rest cached. With at most half of a prompt counted as cached, long chats were
    moved."""
    new_bytes = len(new.encode("utf-8", "surrogatepass"))
    assert conversation_of(ACME, None, chat(*messages), CHAT_OUTPUT)[1:] == (False, new_bytes)


def test_conversation_without_messages_needs_a_session() -> None:
    """The field `messages` means nothing on a route that does not know it."""
    assert conversation_of(ACME, None, {"model": "base", "prompt": "Once", "messages": [7]}, COMPLETIONS_OUTPUT) == (
        None,
        True,
        None,
    )
    assert conversation_of(ACME, "s1", {"model": "base", "input": "Once"}, None) == (
        session_hash(ACME, "s1"),
        False,
        None,
    )


def test_long_beginnings_are_distinguished_by_length_and_ends() -> None:
    long = "x" * 1_000_000
    keys = {key(chat({"role": "user", "content": text})) for text in (long, long + "x", long[:-1] + "y", "y" + long)}
    assert len(keys) == 4


def test_message_boundaries_change_the_key() -> None:
    one = chat({"role": "system", "content": "ab"}, {"role": "user", "content": "c"})
    other = chat({"role": "system", "content": "a"}, {"role": "user", "content": "bc"})
    assert key(one) != key(other)


def test_a_lone_surrogate_is_a_character_like_others() -> None:
    assert key(chat({"role": "user", "content": "\ud800"})) is not None
