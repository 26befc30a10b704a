"""Conversation of a request: a key that all gateways compute alike, and whether this is its first turn.

A session that the caller names (`X-Session-ID`, `session_id`, `prompt_cache_key`) is the conversation. A chat without
one is identified by its beginning, which each of its turns repeats: the model, and everything up to the first user
message.

    turn 1:  system, user 1                          key = hash(model, system, user 1)
    turn 2:  system, user 1, assistant 1, user 2     the same key; an assistant message exists: not the first turn

Text after the last answer is new. The previous turn had everything before it, and the replica that answered has it in
its cache (`functions.gateway.routing.router`). The answer counts as new, because a template may render it
differently.

Two chats with the same beginning have one key, and also one prefix in an engine's cache. The key only influences
which replica a request prefers: rollout groups, stored conversations and traces use named sessions alone.

The hashed part of a message is bounded (its length, its beginning and its end), and so is the number of messages.
Neighbours: `intake` calls this at admission; `functions.gateway.routing.homes` stores where conversations were sent.
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
_SEED = 0x5EED  # named sessions use another hash, so the two never collide
_ASSISTANTS = frozenset(("assistant", "tool", "function"))


def conversation_of(
    tenant: TenantId, session: str | None, parsed: JsonObject, output: OutputFields | None
) -> tuple[bytes | None, bool, int | None]:
    """Return the conversation's key, whether this may be its first turn, and its new text in bytes.

    The key is None if nothing identifies the conversation. `parsed` is a body whose fields were checked, `output` its
    route's. A session on a route without messages counts as continued, with an unknown amount of new text (None).
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
    """Return the key of a chat without a session: a hash of tenant, model and messages up to the first user message.

    Of long texts only the beginning and the end count.
    """
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
    lengths = ",".join(map(str, map(len, texts)))  # makes different sequences of texts hash differently
    if max(map(len, texts)) > _WHOLE_CHARS:
        texts = [text if len(text) <= _WHOLE_CHARS else text[:_BEGINNING_CHARS] + text[-_END_CHARS:] for text in texts]
    sample = f"{lengths}|{''.join(texts)}".encode(errors="surrogatepass")
    # A caller that finds two beginnings with one hash only sends two of its conversations to one replica, so 64 bits
    # are enough.
    return tenant_mark(tenant) + xxh3_64_digest(sample, _SEED)[:_REST_BYTES]


def _texts_of(content: Any) -> list[str]:
    """Return the text of a content, or of each of its first _MAX_MESSAGES parts; "" for a part without text."""
    if type(content) is str:
        return [content]
    if type(content) is not list:
        return [""]
    texts = [part.get("text") if type(part) is dict else part for part in content[:_MAX_MESSAGES]]
    return [text if type(text) is str else "" for text in texts]
