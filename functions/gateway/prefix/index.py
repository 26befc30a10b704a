"""Cached prefix of a prompt on each replica of a pool: three sources behind one question.

`spec.prefix.source` of a RoutingPolicy says which: what the replicas tell (`events`, `bloom`), or this gateway's own
record of what it sent where (`sent`), which is also asked where the replicas have told nothing that could be compared.

The own record counts text, so a part of a prompt is taken for as many tokens as it has of the prompt's bytes:

    cached = matched blocks x block bytes x (prompt tokens / safety) / prompt bytes,    at most prompt tokens - 1

since an engine always computes the last token, and the estimate of the prompt is on the side of too many.
Worked example (test_worked_example_of_the_prologue): 3 of 4 blocks of a text of 2,048 bytes that counts as 564 tokens:
3 x 512 x (564 / 1.1) / 2,048 = 384.

Neighbours: `functions.decisions.prefix.record` is the own record; `exact_prefixes` what the replicas tell; the exchange
asks before it routes and reports what it sent; `core` passes on heartbeats and snapshots.
"""

from collections.abc import Collection
from typing import Protocol

from functions.api.ids import PoolName, ReplicaId
from functions.decisions.prefix.record import PrefixRecord
from functions.decisions.request.length_model import SAFETY_RATIO, START_BYTES_PER_TOKEN
from functions.decisions.routing.request import NOT_CACHED, CachedPrompt
from functions.fleet.heartbeat import Heartbeat
from functions.gateway.request.request import Admitted


class TellingReplicas(Protocol):
    """Knowledge that comes from the replicas themselves."""

    def matched(self, admitted: Admitted) -> CachedPrompt | None:
        """Cached prompt tokens per replica; None: unknown, ask the own record."""


class Prefixes:
    """Owned by one event loop; times are monotonic seconds."""

    def __init__(self, exact: TellingReplicas | None, max_blocks: int, ttl_s: float) -> None:
        self._exact = exact
        self._max_blocks = max_blocks
        self._ttl_s = ttl_s
        self._records: dict[PoolName, PrefixRecord] = {}  # of the snapshot's pools
        self._pool_of: dict[ReplicaId, PoolName] = {}  # bounded by the fleet's view

    def cached(self, admitted: Admitted, now_s: float) -> CachedPrompt:
        """The prompt tokens that each replica has in its cache, as far as is known."""
        if self._exact is not None and admitted.routing.prefix_source != "sent":
            matched = self._exact.matched(admitted)
            if matched is not None:
                return matched
        features = admitted.features
        record = self._records.get(admitted.model.pool)
        if record is None or not features.text_blocks:
            return NOT_CACHED
        found = record.match(features.text_blocks, now_s)
        if not found:
            return NOT_CACHED
        prompt_tokens = features.prompt_tokens if features.prompt_exact else features.prompt_tokens / SAFETY_RATIO
        block_tokens = features.text_block_bytes * prompt_tokens / features.prompt_bytes
        most = features.prompt_tokens - 1
        tokens_of = {blocks: min(int(blocks * block_tokens), most) for blocks in set(found.values())}  # four at most
        return CachedPrompt({replica_id: tokens_of[blocks] for replica_id, blocks in found.items()})

    def sent(self, admitted: Admitted, replica_id: ReplicaId, now_s: float) -> None:
        """The request has gone to a replica, which will have its prompt, and then its answer."""
        record = self._records.get(admitted.model.pool)
        if record is None:
            return
        features = admitted.features
        text_bytes = features.prompt_bytes + int(features.expected_output_tokens * START_BYTES_PER_TOKEN)
        record.enter(features.text_blocks, replica_id, text_bytes, features.text_block_bytes, now_s)

    def receive_heartbeat(self, heartbeat: Heartbeat) -> None:
        """What a heartbeat says of a replica's cache: its size, and that it is gone with its engine."""
        replica_id, pool = ReplicaId(heartbeat.replica_id), PoolName(heartbeat.pool)
        if heartbeat.phase in ("starting", "dead") or self._pool_of.get(replica_id, pool) != pool:
            self.forget(replica_id)
        record = self._records.get(pool)
        if record is not None:
            self._pool_of[replica_id] = pool
            record.holds_at_most(replica_id, _capacity_bytes(heartbeat))

    def forget(self, replica_id: ReplicaId) -> None:
        """The replica's cache is gone."""
        record = self._records.get(self._pool_of.pop(replica_id, PoolName("")))
        if record is not None:
            record.forget(replica_id)

    def swap(self, pools: Collection[PoolName]) -> None:
        """A new snapshot: its pools share the memory evenly."""
        records = {pool: self._records.get(pool) or PrefixRecord(0, self._ttl_s) for pool in pools}
        for record in records.values():
            record.max_blocks = self._max_blocks // len(records)
        self._records = records

    def __len__(self) -> int:
        """Blocks in memory."""
        return sum(map(len, self._records.values()))


def _capacity_bytes(heartbeat: Heartbeat) -> int:
    """The text that may be sent there before the first of it is forgotten; 0: it does not say.

    Twice what the cache holds at the usual bytes a token: much of what is sent is there already, and takes no room.
    Replayed (docs/explanation/routing.md): once took the hit ratio from 0.11 to 0.07, four times slowed the slowest.
    """
    return int(2 * heartbeat.kv_blocks_total * heartbeat.kv_block_tokens * START_BYTES_PER_TOKEN)
