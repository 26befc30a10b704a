"""What Prometheus sees of conversations and server tools. Outcomes alone: names of tools and sessions are tenants' own.

Neighbours: `composition` reports; `functions.gateway.metrics` has it.
"""

from typing import Literal

from prometheus_client import CollectorRegistry

from functions.gateway.chat.conversations import Recalled, Saved
from functions.gateway.chat.tools.calls import ToolOutcome
from functions.telemetry.cells import Counter, Histogram

_SECONDS_BUCKETS = (0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_ROUNDS_BUCKETS = (1.0, 2.0, 3.0, 4.0, 6.0, 8.0)

ConversationOutcome = Recalled | Saved | Literal["not_wished", "deleted"]


class CompositionFigures:
    """Owned by one event loop."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._conversations = Counter(
            "shoal_conversations", "Kept conversations by what became of them", ["outcome"], registry=registry
        )
        self._tool_calls = Counter("shoal_tool_calls", "Calls of server tools", ["outcome"], registry=registry)
        self._tool_seconds = Histogram(
            "shoal_tool_seconds",
            "Of one call of a server tool, waiting for its place included",
            buckets=_SECONDS_BUCKETS,
            registry=registry,
        )
        self._rounds = Histogram(
            "shoal_tool_rounds", "Models asked for one answer", buckets=_ROUNDS_BUCKETS, registry=registry
        )

    def conversation(self, outcome: ConversationOutcome) -> None:
        self._conversations.labels(outcome).inc()

    def tool_called(self, outcome: ToolOutcome, seconds: float) -> None:
        self._tool_calls.labels(outcome).inc()
        if outcome != "not_made":
            self._tool_seconds.observe(seconds)

    def tools_answered(self, rounds: int) -> None:
        self._rounds.observe(rounds)
