"""How much may wait in front of a pool: tokens, requests and bytes, in all and of one tenant, light tenants first.

Neighbours: `admission` asks for whoever finds no room; `overload` says how light tenants lose theirs.
"""

from collections.abc import Sequence
from typing import Literal

from functions.decisions.admission.fair_queue import FairQueue, Flow
from functions.decisions.admission.gate import PART_RATIO
from functions.decisions.admission.ticket import Ticket
from functions.decisions.overload.priority import queue_room_ratio

MAX_QUEUED_REQUESTS = 20_000
MAX_QUEUED_BYTES = 256 << 20
TENANT_MAX_BYTES = 64 << 20
TENANT_MAX_REQUESTS = 512

BoundReason = Literal["queue_full", "tenant_queue_full", "low_tier"]


def bound_broken(
    ticket: Ticket, flow: Flow, queue: FairQueue, queues: Sequence[FairQueue], *,
    max_queued_tokens: int, heaviest: float,
) -> BoundReason | None:  # fmt: skip
    """Which bound one more of the flow would break, of those on what waits in all of the pool's queues."""
    queued_tokens = ticket.kv_tokens + sum(each.queued_kv_tokens for each in queues)
    part = max(PART_RATIO, flow.weight / max(queue.active_weight, flow.weight))
    if (
        queued_tokens > max_queued_tokens
        or sum(each.waiting for each in queues) >= MAX_QUEUED_REQUESTS
        or len(ticket.content) + sum(each.queued_bytes for each in queues) > MAX_QUEUED_BYTES
    ):
        return "queue_full"
    if (
        flow.queued_requests >= TENANT_MAX_REQUESTS
        or flow.queued_kv_tokens + ticket.kv_tokens > part * max_queued_tokens
        or flow.queued_bytes + len(ticket.content) > TENANT_MAX_BYTES
    ):
        return "tenant_queue_full"
    if queued_tokens > max_queued_tokens * queue_room_ratio(flow.weight, heaviest):
        return "low_tier"
    return None
