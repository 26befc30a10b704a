"""Which chats need more than one request, and what their compositions share.

Asked for tenants alone that keep conversations, declare tools or have overlong chats summarised; for all others the
gateway looks at three fields of an entry and goes on. A chat of such a tenant that uses none of it goes the usual way.

Neighbours: `core` asks before it counts a request; `composition` conducts one.
"""

from typing import TYPE_CHECKING

from functions.api.ids import TenantId
from functions.api.snapshot import TenantEntry
from functions.decisions.catalogue import Catalogue
from functions.gateway.chat.composition.composition import Asked, Composition
from functions.gateway.chat.conversations import Conversations
from functions.gateway.chat.tools.calls import ToolCaller
from functions.gateway.errors import Refused
from functions.gateway.http.headers import RawHeaders
from functions.gateway.http.sink import Answering, Sink
from functions.gateway.intake import context_overflow
from functions.gateway.intake.intake import Recognised, WireRequest
from functions.gateway.intake.json_body import JsonObject
from functions.gateway.intake.routes import CHAT, CHAT_OUTPUT

if TYPE_CHECKING:
    from functions.gateway.gateway import Gateway


class Composer:
    """Owned by the gateway's loop. Without `conversations`, tenants' wish to have them kept is not heeded."""

    def __init__(self, gateway: "Gateway", tools: ToolCaller, conversations: Conversations | None) -> None:
        self.gateway = gateway
        self.tools = tools
        self.conversations = conversations

    def concerns(self, catalogue: Catalogue, tenant: TenantId) -> bool:
        """Whether any chat of this tenant may need it."""
        entry = catalogue.tenants[tenant]
        return bool(entry.tools) or entry.conversations is not None or entry.context_overflow == "summarise"

    def take(
        self, catalogue: Catalogue, known: Recognised, wire: WireRequest, sink: Sink, received_s: float
    ) -> Answering | None:
        """A chat of such a tenant. One whose body is not in order goes the usual way, which counts and refuses it.

        Raises OverQuota (429) where its tenant's quota is used up: nothing is read or recalled for it then.
        """
        self.check_quota(known)
        try:
            body = self.gateway.intake.read_body(CHAT, wire.body)
        except Refused:
            return self.round(wire.headers, wire.body, sink, received_s)
        tenant = catalogue.tenants[known.caller.tenant]
        asked = Asked(catalogue, tenant, known, wire, received_s, self._session(tenant, known, body))
        if not self._is_needed(asked, body):
            return self.round(wire.headers, wire.body, sink, received_s)
        composition = Composition(self, asked, body, sink)
        composition.start()
        return composition

    def check_quota(self, known: Recognised) -> None:
        """Whether one more request of its sender could come now, which is not counted; raises OverQuota (429)."""
        self.gateway.quotas.check(known.caller.tenant, known.tier, self.gateway.clock(), known.key)

    def round(self, headers: RawHeaders, body: bytes, sink: Sink, received_s: float) -> Answering | None:
        return self.gateway.handle(CHAT, headers, body, sink, received_s, composed=True)

    def overflow(self, asked: Asked, body: JsonObject, beside_tokens: int = 0) -> range:
        """The messages that do not fit, with `beside_tokens` more; none where admission will say that no model is."""
        model = asked.catalogue.resolve(asked.tenant.name, body["model"]) if type(body.get("model")) is str else None
        if model is None:
            return range(0)
        lengths, pool = self.gateway.intake.features.lengths, model.pool
        return context_overflow.overflow(
            body,
            self.room_tokens(asked, body) - beside_tokens,
            lambda size: lengths.prompt_tokens(pool, asked.tenant.name, size),
        )

    def room_tokens(self, asked: Asked, body: JsonObject) -> int:
        model = asked.catalogue.resolve(asked.tenant.name, body["model"])
        window_tokens = model.context_window_tokens if model is not None else 0
        return context_overflow.room_tokens(body, CHAT_OUTPUT, asked.known.quota, window_tokens)

    def _session(self, tenant: TenantEntry, known: Recognised, body: JsonObject) -> str | None:
        """Under what a conversation is kept: only what is meant as a session's id, not any cache key."""
        if tenant.conversations is None or self.conversations is None:
            return None
        return known.read.session or body.get("session_id") or None

    def _is_needed(self, asked: Asked, body: JsonObject) -> bool:
        if asked.session is not None or any(tool.get("type") == "server" for tool in body.get("tools") or ()):
            return True
        return asked.tenant.context_overflow == "summarise" and bool(self.overflow(asked, body))
