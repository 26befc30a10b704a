"""Prefill and decode on separate replicas: when another pool should compute a prompt and transfer its KV cache.

A long prompt is bound by compute and stalls every stream of the replica that reads it; decoding is bound by memory
bandwidth. If a model has a prefill pool beside the pool that answers, the gateway compares the milliseconds to the
first token of both ways:

    one     = queue  +  own x prefill_ms  +  stall,      stall   = own x prefill_ms x outstanding / CROWD
    arrival = queue' +  own' x prefill_ms'  +  own x transfer_ms  +  HANDOVER_MS
    split   = max(queue, arrival)
    split pays if  split + GAIN_MS <= one

Without a prime: the replica that decodes; with one: the prefill replica. `own` are the prompt's tokens that it has not
cached. The stall is the delay of the running streams, at the price that routing has for it (`prediction`): each waits
for its next token while the prompt is read. The queue of the decoding replica drains while the prompt is computed
elsewhere, hence the maximum. The decoding replica can use the prompt's KV blocks only when all of them have arrived, so
the whole transfer counts.

Worked example (test_worked_example_of_the_prologue): a prompt of 8,000 tokens, nothing cached; the pool's replica reads
a token in 0.1 ms, 10 streams run there, its queue is 50 ms: one = 50 + 800 + 800 x 10 / 20 = 1,250 ms. The prefill
replica reads as fast, and 300 ms are ahead there; a token's 128 KiB take 0.0105 ms at 100 Gbit/s: split = 300 + 800 +
84 + 10 = 1,194. That pays. With 6 streams one = 1,090, and the prompt stays.

A prompt counts as demand of the prefill pool if splitting would pay with an empty queue there (`Weighed.is_demand`),
whether or not that pool reads it. The autoscaler needs this figure, because a full prefill pool receives fewer prompts.
If the pool has no usable replica, one is assumed that reads as fast as the decoding one.

    alone  = own' x prefill_ms'  +  own x transfer_ms  +  HANDOVER_MS
    demand if  max(queue, alone) + GAIN_MS <= one

Worked example (test_worked_example_of_demand): of the two above, both. With 6 streams the prompt stays because 300 ms
are ahead at the prefill replica: alone = 800 + 84 + 10 = 894. With 1 stream it is no demand: one = 50 + 800 + 40.

Short prompts, and prompts cached on the decoding replica, are not compared: most requests cost two comparisons here.
Both replicas must have loaded the same weights, because KV blocks of other weights are useless.

Neighbours: `catalogue` stores the prefill pool of each pool (`prefill_pools`); `functions.gateway.request.split` runs
the comparison and the split; the simulated fleet runs both. Pure.
"""

from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

from functions.api.ids import PoolName
from functions.api.snapshot import PoolEntry
from functions.decisions.routing.crowding import CROWD
from functions.decisions.routing.request import NoReplica, Prediction

HANDOVER_MS = 10.0  # a second request, and the handshake of the two engines
GAIN_MS = 20.0  # smallest gain that counts, given the error of predictions
_LACKS_REPLICAS = frozenset(
    {"pool_empty", "no_replica_ready", "all_tried", "told_to_wait"}
)  # reasons that more replicas would remove

SplitWhy = Literal[
    "pays",  # the only value with a split; in all other cases one engine answers
    "short",
    "cached",
    "slower",
    "unsuited",  # several answers, log probabilities of the prompt, a route without KV blocks
    "no_prefill_replica",
    "no_room",  # the gateway's buffer for large bodies is full
    "other_weights",
    "other_model",  # the request was moved meanwhile: to a rollout's other version or another pool
    "prefill_failed",
    "prefill_refused",
    "prefill_slow",
    "no_params",
    "transfer_failed",
    "transfer_slow",
    "decode_lost",
]


class Weighed(msgspec.Struct, frozen=True):
    """Result of the comparison, for the request's trace; milliseconds to first token."""

    why: SplitWhy
    one_ms: float = 0.0
    split_ms: float = 0.0
    prefill_ms: float = 0.0  # at the prefill pool, its queue included
    transfer_ms: float = 0.0
    wait_ms: float = 0.0  # queue at the prefill replica
    is_demand: bool = False  # counts as demand of the prefill pool, see the module docstring

    @property
    def pays(self) -> bool:
        return self.why == "pays"


def reason_to_skip(prompt_tokens: int, cached_tokens: int, min_prompt_tokens: int) -> SplitWhy | None:
    """Return why the split into prefill and decode replicas is not considered for a prompt: `short` if it has fewer
    than `min_prompt_tokens`, `cached` if its uncached part has; None if the two ways are to be compared."""
    if prompt_tokens < min_prompt_tokens:
        return "short"
    return "cached" if prompt_tokens - cached_tokens < min_prompt_tokens else None


def transfer_ms(tokens: int, prefill_pool: PoolEntry) -> float:
    """Return the milliseconds to transfer the KV blocks of `tokens`; 0 if the pool's bandwidth is not declared."""
    if not prefill_pool.kv_transfer_bytes_per_s:
        return 0.0
    return tokens * prefill_pool.kv_bytes_per_token / prefill_pool.kv_transfer_bytes_per_s * 1000.0


def compare_split(
    prompt_tokens: int, decode: Prediction, prefill: Prediction | NoReplica, prefill_pool: PoolEntry
) -> Weighed:
    """Compare both ways for one request and the best replica of each pool, as the module docstring defines."""
    stall_ms = decode.prefill_ms * decode.outstanding / CROWD
    one_ms = decode.total_ms + stall_ms
    moved_ms = transfer_ms(max(0, prompt_tokens - decode.cached_tokens), prefill_pool)

    def split_ms(read_ms: float) -> float:
        return max(decode.queue_ms, read_ms + moved_ms + HANDOVER_MS)

    if isinstance(prefill, NoReplica):
        why: SplitWhy = "other_weights" if prefill.reason == "weights_not_loaded" else "no_prefill_replica"
        lacks_replicas = prefill.reason in _LACKS_REPLICAS
        return Weighed(why, is_demand=lacks_replicas and split_ms(decode.prefill_ms) + GAIN_MS <= one_ms)
    if not same_weights(decode, prefill):
        return Weighed("other_weights")
    arrives_ms = split_ms(prefill.total_ms)
    return Weighed(
        "pays" if arrives_ms + GAIN_MS <= one_ms else "slower",
        one_ms,
        arrives_ms,
        prefill.total_ms,
        moved_ms,
        wait_ms=prefill.queue_ms,
        is_demand=split_ms(prefill.total_ms - prefill.queue_ms) + GAIN_MS <= one_ms,
    )


def same_weights(decode: Prediction, prefill: Prediction) -> bool:
    """Return False if both replicas report their weights and they differ."""
    one, other = decode.replica.weights, prefill.replica.weights
    return one is None or other is None or one == other


def prefill_pools(pools_of: Mapping[PoolName, Iterable[PoolEntry]]) -> dict[PoolName, PoolEntry]:
    """Return the prefill pool of each answering pool: same model, same quantization, same tenants. If several match,
    the first by name wins."""
    found: dict[PoolName, PoolEntry] = {}
    for entries in pools_of.values():
        those = sorted((entry for entry in entries if entry.role == "prefill"), key=lambda entry: entry.name)
        for entry in entries if those else ():
            if not entry.role:
                its = [pool for pool in those if _alike(pool, entry)]
                if its:
                    found[entry.name] = its[0]
    return found


def _alike(one: PoolEntry, other: PoolEntry) -> bool:
    return one.quantization == other.quantization and set(one.dedicated_to) == set(other.dedicated_to)
