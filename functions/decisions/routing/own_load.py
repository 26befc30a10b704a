"""Requests that one gateway has in flight at each replica: exact, while heartbeats are a second old.

    prefill ahead = prompt tokens sent, less those cached there, of requests whose first token has not come

Tokens are counted, not only requests, because a prompt waits for tokens: an engine computes prompts in the order of
arrival, and one of 30,000 tokens lasts as long as a hundred short ones.
Worked example (test_worked_example_of_tokens_ahead): two requests with 4,000 and 1,000 tokens to compute are sent to a
replica: 2 in flight, 5,000 tokens ahead. The first answers: 2 in flight, 1,000 ahead. It ends: 1 in flight.

Neighbours: `functions.gateway.request.attempt` calls enter, start and leave; `choice` reads.
"""

from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from functions.api.ids import ReplicaId

_NOBODY: Mapping[ReplicaId, int] = MappingProxyType({})


class InFlightSlot(msgspec.Struct, eq=False):  # a slot equals itself alone
    """One request at one replica."""

    replica_id: ReplicaId
    prefill_tokens: int  # still to be computed; 0 once its first token came
    sent_s: float  # monotonic


class OwnLoad:
    """Requests and prefill tokens in flight, by replica. Owned by one event loop. Idle replicas use no memory."""

    __slots__ = ("ahead_tokens", "in_flight")

    def __init__(self, in_flight: Mapping[ReplicaId, int] = _NOBODY) -> None:
        self.in_flight = dict(in_flight)  # requests
        self.ahead_tokens: dict[ReplicaId, int] = {}

    def add_request(self, replica_id: ReplicaId, prefill_tokens: int, sent_s: float = 0.0) -> InFlightSlot:
        """Count a request sent to the replica, with the prompt tokens to compute before its first token, and return its
        slot for later calls."""
        self.in_flight[replica_id] = self.in_flight.get(replica_id, 0) + 1
        if prefill_tokens:
            self.ahead_tokens[replica_id] = self.ahead_tokens.get(replica_id, 0) + prefill_tokens
        return InFlightSlot(replica_id, prefill_tokens, sent_s)

    def mark_first_token(self, slot: InFlightSlot) -> None:
        """Remove the request's prefill tokens: its first token has come or must have. A second call has no effect."""
        tokens = slot.prefill_tokens
        if not tokens:
            return
        slot.prefill_tokens = 0
        left = self.ahead_tokens[slot.replica_id] - tokens
        if left:
            self.ahead_tokens[slot.replica_id] = left
        else:
            del self.ahead_tokens[slot.replica_id]

    def remove_request(self, slot: InFlightSlot) -> None:
        """Count the end of the request, and remove its prefill tokens if they are left. Call once per slot."""
        self.mark_first_token(slot)
        left = self.in_flight[slot.replica_id] - 1
        if left:
            self.in_flight[slot.replica_id] = left
        else:
            del self.in_flight[slot.replica_id]
