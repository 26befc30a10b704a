"""Services that compositions share: the gateway's services, tools, stored conversations, and metrics.

A recalled conversation must fit the limits of a request's shape in addition to its tokens. Each stored request had at
most the allowed messages and values (objects, arrays and keys); all of them together may have more. The caller cannot
see them, so the oldest turns are dropped, as for too many tokens:

    values = those of the body around the messages + those of each message     at most `Limits.json_values`
    worked example (test_turns_with_too_many_values_are_dropped): turns of 40,003, 40,003 and, new, 40,003 values
    beside ten around: 120,019 are over 100,000, so the first turn is dropped

Metrics are labelled by outcome only, because names of tools and sessions belong to tenants. Neighbours: `server`
makes it, `composer` and `composition` use it.
"""

from dataclasses import dataclass
from typing import Literal

from prometheus_client import CollectorRegistry

from functions.api.snapshot import TenantEntry
from functions.decisions.catalogue import Catalogue
from functions.decisions.request.context_window import Said, messages_to_drop
from functions.gateway.chat.conversations import KeptConversations, Recalled, Saved
from functions.gateway.chat.tools.calls import ToolCaller, ToolOutcome
from functions.gateway.http.headers import RawHeaders
from functions.gateway.http.sink import Answering, Sink
from functions.gateway.intake import context_overflow
from functions.gateway.intake.intake import RawRequest, Recognised
from functions.gateway.intake.json_body import JsonObject, has_at_most, values_in
from functions.gateway.intake.routes import CHAT, CHAT_OUTPUT
from functions.gateway.limits import Limits
from functions.gateway.services import RequestHandler, Services
from functions.telemetry.cells import CounterFamily, HistogramFamily

_SECONDS_BUCKETS = (0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_ROUNDS_BUCKETS = (1.0, 2.0, 3.0, 4.0, 6.0, 8.0)

ConversationOutcome = Recalled | Saved | Literal["not_wished", "deleted"]


class CompositionMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self._conversations = CounterFamily(
            "shoal_conversations", "Operations on stored conversations, by outcome", ["outcome"], registry=registry
        )
        self._tool_calls = CounterFamily("shoal_tool_calls", "Calls of server tools", ["outcome"], registry=registry)
        self._tool_seconds = HistogramFamily(
            "shoal_tool_seconds",
            "Time of one call of a server tool, including the wait for a slot",
            buckets=_SECONDS_BUCKETS,
            registry=registry,
        )
        self._rounds = HistogramFamily(
            "shoal_tool_rounds",
            "Requests to the model for one answer with server tools",
            buckets=_ROUNDS_BUCKETS,
            registry=registry,
        )

    def conversation(self, outcome: ConversationOutcome) -> None:
        self._conversations.labels(outcome).inc()

    def tool_called(self, outcome: ToolOutcome, seconds: float) -> None:
        self._tool_calls.labels(outcome).inc()
        if outcome != "not_made":
            self._tool_seconds.observe(seconds)

    def tools_answered(self, rounds: int) -> None:
        self._rounds.observe(rounds)


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A client's chat request after its first checks."""

    catalogue: Catalogue
    tenant: TenantEntry
    known: Recognised
    raw: RawRequest
    received_s: float
    session: str | None  # set if a conversation is to be stored


class ChatServices:
    """Services of compositions. Owned by one event loop. Without `conversations`, no conversation is stored."""

    def __init__(
        self, services: Services, handle: RequestHandler, tools: ToolCaller, conversations: KeptConversations | None
    ) -> None:
        self.services = services
        self.tools = tools
        self.conversations = conversations
        self.metrics = CompositionMetrics(services.metrics.registry)
        self._handle = handle

    def check_quota(self, known: Recognised) -> None:
        """Raise OverQuota (429) if the quotas of tenant or key allow no more request now. The check is not counted."""
        self.services.quotas.check(known.caller.tenant, known.tier, self.services.clock(), known.key)

    def round(self, headers: RawHeaders, body: bytes, sink: Sink, received_s: float) -> Answering | None:
        return self._handle(CHAT, headers, body, sink, received_s, composed=True)

    def overflow(self, asked: ChatRequest, body: JsonObject, beside_tokens: int = 0) -> range:
        """Return the indices of messages to drop so that the rest fits the window beside `beside_tokens` more tokens.

        The range is empty if the model does not exist, which admission will report.
        """
        model = asked.catalogue.resolve(asked.tenant.name, body["model"]) if type(body.get("model")) is str else None
        if model is None:
            return range(0)
        lengths, pool = self.services.intake.features.lengths, model.pool
        return context_overflow.overflow(
            body,
            self.headroom_tokens(asked, body) - beside_tokens,
            lambda size: lengths.prompt_tokens(pool, asked.tenant.name, size),
        )

    def headroom_tokens(self, asked: ChatRequest, body: JsonObject) -> int:
        model = asked.catalogue.resolve(asked.tenant.name, body["model"])
        window_tokens = model.context_window_tokens if model is not None else 0
        return context_overflow.headroom_tokens(body, CHAT_OUTPUT, asked.known.quota, window_tokens)


def too_much(body: JsonObject, limits: Limits) -> range:
    """Return the indices of messages to drop for the limits of messages and JSON values; never of the last turn."""
    messages = body["messages"]
    gone = range(0)
    if len(messages) > limits.messages:
        gone = messages_to_drop([Said(message["role"], 1) for message in messages], limits.messages)
    if not has_at_most(body, limits.json_values):
        room = limits.json_values - values_in(body | {"messages": []})
        by_values = messages_to_drop([Said(message["role"], values_in(message)) for message in messages], room)
        gone = max(gone, by_values, key=len)
    return gone
