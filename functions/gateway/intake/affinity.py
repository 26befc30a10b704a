"""Conversation of a request: what names it to every gateway alike, and whether this is its first turn.

A session that the caller names (`X-Session-ID`, `session_id`, `prompt_cache_key`) is the conversation. A chat without
one is known by how it begins, which each of its turns brings again: the model, and all up to the first user's message.

    turn 1:  system, user 1                          key = hash(model, system, user 1)
    turn 2:  system, user 1, assistant 1, user 2     the same key; an assistant has spoken: not the first turn

Two chats that begin alike have one key, and one prefix in an engine's cache, too. It decides nothing but where a
request likes to go: a rollout's groups, stored conversations and traces know named sessions alone.

What is hashed of a message is bounded (its length, its beginning and its end), and so are the messages looked at.
Neighbours: `intake` asks at admission; `functions.gateway.routing.homes` keeps where conversations went.
"""

import hashlib
from typing import Any

from functions.api.ids import TenantId
from functions.decisions.routing.sessions import HASH_BYTES, MARK_BYTES, session_hash, tenant_mark
from functions.gateway.intake.json_body import JsonObject

_MAX_MESSAGES = 8
_BEGINNING_CHARS = 1024
_END_CHARS = 256
_ASSISTANTS = frozenset(("assistant", "tool", "function"))


def conversation_of(tenant: TenantId, session: str | None, parsed: JsonObject) -> tuple[bytes | None, bool]:
    """The conversation's key, None where nothing names it, and whether this may be its first turn.

    `parsed` is a body whose fields were checked. A session on a route without messages is taken for one that goes on.
    """
    messages = parsed.get("messages")
    if not isinstance(messages, list) or not messages:
        return (session_hash(tenant, session), False) if session is not None else (None, True)
    opens = not any(message["role"] in _ASSISTANTS for message in messages)
    if session is not None:
        return session_hash(tenant, session), opens
    return tenant_mark(tenant) + _hash_of_beginning(parsed, messages), opens


def _hash_of_beginning(parsed: JsonObject, messages: list[dict[str, Any]]) -> bytes:
    hashed = hashlib.blake2b(digest_size=HASH_BYTES - MARK_BYTES, person=b"shoal-beginning")
    _add(hashed, str(parsed.get("model")))
    _add_content(hashed, parsed.get("system"))
    for message in messages[:_MAX_MESSAGES]:
        _add(hashed, message["role"])
        _add_content(hashed, message.get("content"))
        if message["role"] == "user":
            break
    return hashed.digest()


def _add_content(hashed: "hashlib.blake2b", content: Any) -> None:
    if type(content) is str:
        _add(hashed, content)
    elif type(content) is list:
        for part in content[:_MAX_MESSAGES]:
            text = part.get("text") if type(part) is dict else part
            _add(hashed, text if type(text) is str else "")


def _add(hashed: "hashlib.blake2b", text: str) -> None:
    """Its length before it, so that no two sequences of texts read alike."""
    sample = text if len(text) <= _BEGINNING_CHARS + _END_CHARS else text[:_BEGINNING_CHARS] + text[-_END_CHARS:]
    hashed.update(b"%d|" % len(text) + sample.encode(errors="surrogatepass"))
