"""Conversations of a tenant, stored between requests so that each request carries only new messages.

Conversations are stored if the tenant's policy says so, for requests with a session id. The storage key is an HMAC of
tenant and session. The value is sealed (AES-GCM, a key derived from the pepper, the storage key as associated data).
So a reader of the bus learns neither tenants nor messages, and cannot move a value to another key. A value that
cannot be opened counts as no conversation, which starts again.

    kept       the messages, with one set of system messages: the latest complete turns within `maxTokens`
    bounded    by tokens (tenant's limit), bytes (gateway's), time since the last request; per tenant by bytes
    shared     by all keys of a tenant, so that a key can be replaced; separate conversations need other sessions

Neighbours: `functions.fleet.conversation_store` is the storage; `composition` loads before a request and saves after
it.
"""

import hashlib
import hmac
import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from functions.api.ids import TenantId
from functions.api.snapshot import ConversationsPart
from functions.decisions.request.context_window import Said, messages_to_drop
from functions.fleet.bus import BusUnavailable
from functions.fleet.conversation_store import ConversationStore
from functions.gateway.errors import RequestRejected, unavailable
from functions.gateway.intake.lengths import BYTES_PER_TOKEN, text_bytes
from functions.gateway.tenant_limits import TenantSlots

_log = logging.getLogger(__name__)
_NONCE_BYTES = 12
_MAX_BYTES = 1024 * 1024  # size of one conversation as JSON
_WARN_EVERY_S = 60.0
_MAX_MESSAGES = 1000  # half of a request's limit
_SYSTEM = ("system", "developer")
READ_AT_ONCE = 8  # by one tenant: a fourth of the connections (`conversation_store.MAX_CONNECTIONS`)
_READ_WAIT_S = 2.0  # a healthy bus returns a conversation within a millisecond

Message = dict[str, Any]
Recalled = Literal["began", "recalled", "unreadable", "unavailable"]
Saved = Literal["kept", "conflict", "too_long", "not_saved"]


@dataclass(frozen=True, slots=True)
class Conversation:
    shelf: str  # the tenant's shelf
    name: str
    sealed: bytes | None  # None means not stored yet
    messages: tuple[Message, ...]
    outcome: Recalled = "recalled"

    def continued(self, new: list[Message]) -> list[Message]:
        """Return the new leading system messages (which replace stored ones), stored messages, and other new ones."""
        old = [message for message in self.messages if not _is_system(new[:1]) or message["role"] not in _SYSTEM]
        cut = _system_messages(new)
        return [*new[:cut], *old, *new[cut:]]

    def recalled_until(self, new: list[Message]) -> int:
        """Return the index in `continued(new)` at which the recalled messages end."""
        return len(self.continued(new)) - len(new) + _system_messages(new)


class KeptConversations:
    """Stored conversations of all tenants. Owned by one event loop."""

    def __init__(self, store: ConversationStore, pepper: bytes, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._clock = clock
        self._warned_s: float | None = None
        self.slots = recall_slots()
        self._name_key = hmac.digest(pepper, b"conversation-name", hashlib.sha256)
        self._cipher = AESGCM(hmac.digest(pepper, b"conversation-seal", hashlib.sha256))

    async def load(self, tenant: TenantId, session: str) -> Conversation:
        """Return the session's conversation, without messages if none is stored or it is unreadable.

        Raises RequestRejected (503) if the bus is unreachable.
        """
        shelf, name = self._shelf(tenant), self._name(tenant, session)
        try:
            sealed = await self._store.read(name)
        except BusUnavailable as error:
            message = (
                "The conversation of this session cannot be read now. Try again shortly, or send the whole "
                "conversation without a session id."
            )
            raise RequestRejected(unavailable(message, "conversation_unavailable", 1)) from error
        if sealed is None:
            return Conversation(shelf, name, None, (), "began")
        opened = self._opened(name, sealed)
        return Conversation(shelf, name, sealed, opened or (), "unreadable" if opened is None else "recalled")

    async def forget(self, tenant: TenantId, session: str) -> bool:
        """Delete the conversation and return True if there was one; raise RequestRejected (503) if the bus is lost."""
        try:
            return await self._store.delete(self._shelf(tenant), self._name(tenant, session))
        except BusUnavailable as error:
            message = "The conversation of this session cannot be deleted now. Try again shortly."
            raise RequestRejected(unavailable(message, "conversation_unavailable", 1)) from error

    async def save(self, conversation: Conversation, messages: list[Message], kept: ConversationsPart) -> Saved:
        """Store the conversation and return the outcome.

        It is not stored if another request of the session was faster or the bus is unreachable. If the last turn
        alone exceeds the limits, the conversation starts again empty, because it must have no gaps.
        """
        latest = _latest(messages, kept.max_tokens)
        document = msgspec.json.encode(latest)
        nonce = os.urandom(_NONCE_BYTES)
        sealed = nonce + self._cipher.encrypt(nonce, document, conversation.name.encode())
        try:
            replaced = await self._store.replace(
                conversation.shelf, conversation.name, conversation.sealed, sealed, kept.ttl_s
            )
        except BusUnavailable as error:
            self._warn(error)
            return "not_saved"
        if not replaced:
            return "conflict"
        return "kept" if latest else "too_long"

    def _warn(self, error: BusUnavailable) -> None:
        """Log at most once a minute, because every turn may fail; a metric counts all failures."""
        now_s = self._clock()
        if self._warned_s is None or now_s - self._warned_s >= _WARN_EVERY_S:
            self._warned_s = now_s
            _log.warning("conversations cannot be stored: %s", error)

    def _shelf(self, tenant: TenantId) -> str:
        return hmac.digest(self._name_key, b"shelf\0" + tenant.encode(), hashlib.sha256).hex()[:40]

    def _name(self, tenant: TenantId, session: str) -> str:
        text = tenant.encode() + b"\0" + session.encode(errors="surrogatepass")
        return hmac.digest(self._name_key, text, hashlib.sha256).hex()[:40]

    def _opened(self, name: str, sealed: bytes) -> tuple[Message, ...] | None:
        try:
            document = self._cipher.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], name.encode())
            return msgspec.json.decode(document, type=tuple[Message, ...])
        except (InvalidTag, ValueError, msgspec.DecodeError):
            _log.warning("a stored conversation could not be decrypted and starts again")
            return None


def _latest(messages: list[Message], max_tokens: int) -> list[Message]:
    """Return the latest complete turns that fit the limits; empty if not even the last one fits."""
    most = min(max_tokens, _MAX_BYTES // (2 * BYTES_PER_TOKEN))
    least = most // _MAX_MESSAGES + 1  # lower limit of a message's tokens, so that the number of messages is bounded
    said = [Said(message["role"], max(least, text_bytes(message) // BYTES_PER_TOKEN)) for message in messages]
    gone = messages_to_drop(said, most)
    kept = [message for index, message in enumerate(messages) if index not in gone]
    kept_tokens = sum(one.tokens for index, one in enumerate(said) if index not in gone)
    return kept if kept_tokens <= most and len(msgspec.json.encode(kept)) <= _MAX_BYTES else []


def _system_messages(messages: list[Message]) -> int:
    return next((index for index, message in enumerate(messages) if message["role"] not in _SYSTEM), len(messages))


def _is_system(messages: list[Message]) -> bool:
    return bool(messages) and messages[0]["role"] in _SYSTEM


def recall_slots(wait_s: float = _READ_WAIT_S) -> TenantSlots:
    """Return slots that limit each tenant's concurrent reads of conversations: all tenants share the bus connections.

    After waiting for a slot, a request may be rejected for its tenant's quota before anything is read: earlier
    requests of the tenant may have used the quota up.
    """
    return TenantSlots(READ_AT_ONCE, wait_s=wait_s, refusal=_too_many_reads)


def _too_many_reads() -> RequestRejected:
    message = f"{READ_AT_ONCE} of your conversations are being read, which is the limit. Try again shortly."
    return RequestRejected(unavailable(message, "conversation_unavailable", 1))
