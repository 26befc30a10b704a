"""Cached prefix of a prompt on each replica of a pool, from one of three sources.

`spec.prefix.source` of a RoutingPolicy chooses the source: reports of the replicas (`events`, `bloom`), or this
gateway's own record of sent prompts (`sent`). The own record is also used if the replicas have reported nothing
comparable.

The own record counts text, so a part of a prompt counts as its share of the prompt's bytes:

    cached = matched blocks x block bytes x (prompt tokens / safety) / prompt bytes,    at most prompt tokens - 1

The maximum exists because an engine always computes the last token, and the safety ratio because the prompt's
estimate is high. Worked example (test_worked_example_of_the_prologue): 3 of 4 blocks of a text of 2,048 bytes that
counts as 564 tokens: 3 x 512 x (564 / 1.1) / 2,048 = 384.

`functions.decisions.prefix.record` is the own record; `exact_prefixes` has the replicas' reports. The router queries
before it chooses and reports what it sent; `core` passes on heartbeats and snapshots.
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
    """Cached prefixes that replicas report."""

    def matched(self, admitted: Admitted) -> CachedPrompt | None:
        """Return the cached prompt tokens per replica, or None if the own record must be used."""


class Prefixes:
    """Cached prefixes of all pools at one gateway. Owned by one event loop; times are monotonic seconds."""

    def __init__(self, exact: TellingReplicas | None, max_blocks: int, ttl_s: float) -> None:
        self._exact = exact
        self._max_blocks = max_blocks
        self._ttl_s = ttl_s
        self._records: dict[PoolName, PrefixRecord] = {}  # records of the snapshot's pools
        self._pool_of: dict[ReplicaId, PoolName] = {}  # bounded by the fleet's view

    def cached(self, admitted: Admitted, now_s: float) -> CachedPrompt:
        """Return the known number of prompt tokens in each replica's cache, exact or estimated from what was sent."""
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
        # At most four different values
        tokens_of = {blocks: min(int(blocks * block_tokens), most) for blocks in set(found.values())}
        return CachedPrompt({replica_id: tokens_of[blocks] for replica_id, blocks in found.items()})

    def record_sent(self, admitted: Admitted, replica_id: ReplicaId, now_s: float) -> None:
        """Record that the replica will cache the request's prompt, and then its answer. Ignore an unknown pool."""
        record = self._records.get(admitted.model.pool)
        if record is None:
            return
        features = admitted.features
        text_bytes = features.prompt_bytes + int(features.expected_output_tokens * START_BYTES_PER_TOKEN)
        record.record_sent(features.text_blocks, replica_id, text_bytes, features.text_block_bytes, now_s)

    def receive_heartbeat(self, heartbeat: Heartbeat) -> None:
        """Apply a replica's cache size. Forget its cache if its engine has restarted or it moved to another pool."""
        replica_id, pool = ReplicaId(heartbeat.replica_id), PoolName(heartbeat.pool)
        if heartbeat.phase in ("starting", "dead") or self._pool_of.get(replica_id, pool) != pool:
            self.forget(replica_id)
        record = self._records.get(pool)
        if record is not None:
            self._pool_of[replica_id] = pool
            record.set_capacity(replica_id, _capacity_bytes(heartbeat))

    def forget(self, replica_id: ReplicaId) -> None:
        """Forget what the replica has cached and its pool; does nothing for an unknown replica."""
        record = self._records.get(self._pool_of.pop(replica_id, PoolName("")))
        if record is not None:
            record.forget(replica_id)

    def swap(self, pools: Collection[PoolName]) -> None:
        """Apply a new snapshot's pools: forget other pools' records, and share the blocks evenly among these."""
        records = {pool: self._records.get(pool) or PrefixRecord(0, self._ttl_s) for pool in pools}
        for record in records.values():
            record.max_blocks = self._max_blocks // len(records)
        self._records = records

    def __len__(self) -> int:
        """Return the number of recorded text blocks in all pools."""
        return sum(map(len, self._records.values()))


def _capacity_bytes(heartbeat: Heartbeat) -> int:
    """Return the bytes of text that may be sent to a replica before its oldest text counts as evicted.

    0 if its cache size is unknown.

    This is twice the cache size at the usual bytes per token, because part of what is sent is cached already and
    needs no room. Replayed (docs/explanation/routing.md): a factor of one reduced the hit ratio from 0.11 to 0.07,
    and four slowed the slowest.
    """
    return int(2 * heartbeat.kv_blocks_total * heartbeat.kv_block_tokens * START_BYTES_PER_TOKEN)
