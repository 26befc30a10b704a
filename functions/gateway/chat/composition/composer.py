"""Chats that need more than one request, and the state that their compositions share.

Only tenants with stored conversations, declared tools or summarised chats use it. For all others the gateway checks
three fields of the tenant's entry and continues. A chat of such a tenant that uses none of these features is handled
as usual.

Neighbours: `gateway` calls it as an `Interceptor`; `composition` runs one chat.
"""

from typing import Any

from fastapi import FastAPI, Request

from functions.api.ids import TenantId
from functions.api.snapshot import TenantEntry
from functions.decisions.catalogue import Catalogue
from functions.gateway import errors
from functions.gateway.chat.composition.composition import Composition
from functions.gateway.chat.composition.shared import ChatRequest, ChatServices
from functions.gateway.errors import RequestRejected, bad_request
from functions.gateway.http.headers import read_headers
from functions.gateway.http.sink import Answering, Sink
from functions.gateway.intake.callers import identify_lookup
from functions.gateway.intake.intake import RawRequest, Recognised
from functions.gateway.intake.json_body import JsonObject
from functions.gateway.intake.routes import CHAT


class Composer:
    """An `Interceptor` of chats, and the route that deletes conversations."""

    route = CHAT

    def __init__(self, shared: ChatServices) -> None:
        self._shared = shared

    def may_handle(self, catalogue: Catalogue, tenant: TenantId) -> bool:
        """Return True if the tenant has tools, stored conversations or summaries, so that a chat may be composed."""
        entry = catalogue.tenants[tenant]
        return bool(entry.tools) or entry.conversations is not None or entry.context_overflow == "summarise"

    def start_answer(
        self, catalogue: Catalogue, known: Recognised, raw: RawRequest, sink: Sink, received_s: float
    ) -> Answering | None:
        """Start and return a composition for a chat; handle it as an ordinary request if it needs none or is invalid.

        Raises OverQuota (429) if the tenant's quota is used up; then nothing is read or recalled.
        """
        self._shared.check_quota(known)
        try:
            body = self._shared.services.intake.read_body(CHAT, raw.body)
        except RequestRejected:
            return self._shared.round(raw.headers, raw.body, sink, received_s)
        tenant = catalogue.tenants[known.caller.tenant]
        asked = ChatRequest(catalogue, tenant, known, raw, received_s, self._session(tenant, known, body))
        if not self._is_needed(asked, body):
            return self._shared.round(raw.headers, raw.body, sink, received_s)
        composition = Composition(self._shared, asked, body, sink)
        composition.start()
        return composition

    def add_routes(self, app: FastAPI) -> None:
        @app.delete("/v1/conversations")
        async def forget(request: Request) -> dict[str, Any]:
            """Delete the conversation of a session; `deleted` is False if there was none.

            The header names the session, because its id may have characters that a path cannot have.
            """
            services = self._shared.services
            _, caller = identify_lookup(services, request)
            session = read_headers(request.scope["headers"], request.state.request_id, services.limits).session
            if session is None:
                raise bad_request(
                    "The header X-Session-ID is required: it names the conversation to delete.", "X-Session-ID"
                )
            if self._shared.conversations is None:
                raise RequestRejected(errors.not_found(request.method, request.scope["path"]))
            deleted = await self._shared.conversations.forget(caller.tenant, session)
            if deleted:
                self._shared.metrics.conversation("deleted")
            return {"id": session, "object": "conversation.deleted", "deleted": deleted}

    def _session(self, tenant: TenantEntry, known: Recognised, body: JsonObject) -> str | None:
        """Return the id of the session whose conversation is stored; None if the chat names none or nothing is stored.

        A cache key does not count as a session id here.
        """
        if tenant.conversations is None or self._shared.conversations is None:
            return None
        return known.read.session or body.get("session_id") or None

    def _is_needed(self, asked: ChatRequest, body: JsonObject) -> bool:
        if asked.session is not None or any(tool.get("type") == "server" for tool in body.get("tools") or ()):
            return True
        return asked.tenant.context_overflow == "summarise" and bool(self._shared.overflow(asked, body))
