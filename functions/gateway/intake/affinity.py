"""Conversation of a request: what names it to every gateway alike, and whether this is its first turn.

A session that the caller names (`X-Session-ID`, `session_id`, `prompt_cache_key`) is the conversation. A chat without
one is known by how it begins, which each of its turns brings again: the model, and all up to the first user's message.

    turn 1:  system, user 1                          key = hash(model, system, user 1)
    turn 2:  system, user 1, assistant 1, user 2     the same key; an assistant has spoken: not the first turn

What came since the last answer is new; all before it the former turn has had, and the replica that answered it has it
in its cache (`functions.gateway.routing.router`). The answer counts as new: a template may write it otherwise.

Two chats that begin alike have one key, and one prefix in an engine's cache, too. It decides nothing but where a
request likes to go: a rollout's groups, stored conversations and traces know named sessions alone.

What is hashed of a message is bounded (its length, its beginning and its end), and so are the messages looked at.
Neighbours: `intake` asks at admission; `functions.gateway.routing.homes` keeps where conversations went.
"""

from typing import Any

from xxhash import xxh3_64_digest

from functions.api.ids import TenantId
from functions.decisions.routing.sessions import HASH_BYTES, MARK_BYTES, session_hash, tenant_mark
from functions.gateway.intake.json_body import JsonObject
from functions.gateway.intake.lengths import OutputFields

_MAX_MESSAGES = 8
_BEGINNING_CHARS = 1024
_END_CHARS = 256
_WHOLE_CHARS = _BEGINNING_CHARS + _END_CHARS
_REST_BYTES = HASH_BYTES - MARK_BYTES
_SEED = 0x5EED  # a session that is named is hashed otherwise: the two do not meet
_ASSISTANTS = frozenset(("assistant", "tool", "function"))


def conversation_of(
    tenant: TenantId, session: str | None, parsed: JsonObject, output: OutputFields | None
) -> tuple[bytes | None, bool, int | None]:
    """The conversation's key, None where nothing names it; whether this may be its first turn; its new text in bytes.

    `parsed` is a body whose fields were checked, `output` its route's. A session on a route without messages is taken
    for one that goes on, and nobody knows what of it is new.
    """
    if output is None or output.prompt != "messages":
        return (session_hash(tenant, session), False, None) if session is not None else (None, True, None)
    opens, new_bytes = True, 0
    for message in reversed(parsed["messages"]):
        role, content = message["role"], message.get("content")
        if type(content) is str:
            new_bytes += len(content) if content.isascii() else len(content.encode(errors="surrogatepass"))
        elif content is not None:
            new_bytes += sum(len(text.encode(errors="surrogatepass")) for text in _texts_of(content))
        if role in _ASSISTANTS:
            opens = False
            if role == "assistant":
                break
    return (
        session_hash(tenant, session) if session is not None else _hash_of_beginning(tenant, parsed),
        opens,
        new_bytes,
    )


def _hash_of_beginning(tenant: TenantId, parsed: JsonObject) -> bytes:
    """No calls of ours where contents are plain texts: it is made for every chat."""
    texts: list[str] = [str(parsed.get("model"))]
    system = parsed.get("system")
    if system is not None:
        texts += _texts_of(system)
    for message in parsed["messages"][:_MAX_MESSAGES]:
        role, content = message["role"], message.get("content")
        texts.append(role)
        if type(content) is str:
            texts.append(content)
        else:
            texts += _texts_of(content)
        if role == "user":
            break
    lengths = ",".join(map(str, map(len, texts)))  # no two sequences of texts read alike
    if max(map(len, texts)) > _WHOLE_CHARS:
        texts = [text if len(text) <= _WHOLE_CHARS else text[:_BEGINNING_CHARS] + text[-_END_CHARS:] for text in texts]
    sample = f"{lengths}|{''.join(texts)}".encode(errors="surrogatepass")
    # Whoever finds two beginnings with one hash sends two conversations of its own to one replica: no need for more.
    return tenant_mark(tenant) + xxh3_64_digest(sample, _SEED)[:_REST_BYTES]


def _texts_of(content: Any) -> list[str]:
    """Of a content in parts: its first texts."""
    if type(content) is str:
        return [content]
    if type(content) is not list:
        return [""]
    texts = [part.get("text") if type(part) is dict else part for part in content[:_MAX_MESSAGES]]
    return [text if type(text) is str else "" for text in texts]
