"""Which replica answers: the one with the least predicted time to first token.

One unit, milliseconds to first token, so that every term can be measured and compared:

    predicted = outstanding x service_ms  +  prompt_tokens x prefill_ms_per_token

`outstanding` is what waits or runs at the replica: its last heartbeat, or this gateway's own count where that is
larger, since requests sent after the beat are not in it yet.
Worked example (test_worked_example_from_the_prologue): A has 3 requests outstanding at 40 ms each, B has 1 at 90 ms.
A 200-token prompt costs 0.5 ms a token on A and 1.0 on B. A: 3 x 40 + 100 = 220; B: 1 x 90 + 200 = 290. A answers.
Load is bounded (consistent hashing with bounded loads; c is the RoutingPolicy's `boundedLoad`): a replica that already
has more than its share, ceil(c x (all outstanding + 1) / replicas), is no candidate, however fast it looks. Measured
rates lag: one slow minute would otherwise send nearly everything elsewhere for as long as nobody corrects it.
Worked example (test_no_replica_gets_more_than_its_share): with c = 1.25, 10 and 2 outstanding make a share of
ceil(1.25 x 13 / 2) = 9, so the first takes no more, though it seems ten times as fast.
Only replicas that hold the model's adapter are candidates: an engine answers 404 for one that it has not loaded.

Ties break by rendezvous hash of the request's key, never by the order in which replicas were learnt.
"""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Literal

from functions.api.ids import EngineName, PoolName, ReplicaId
from functions.api.snapshot import RoutingEntry
from functions.decisions.bloom import Bloom

ReplicaPhase = Literal["starting", "ready", "draining", "hung", "dead"]


@dataclass(frozen=True, slots=True)
class ReplicaView:
    """What a gateway believes of one replica, folded from its heartbeats."""

    id: ReplicaId
    pool: PoolName
    host: str
    port: int
    phase: ReplicaPhase
    running: int
    waiting: int
    kv_usage_ratio: float
    adapters: frozenset[EngineName]
    service_ms: float  # what one outstanding request adds to the next one's wait
    prefill_ms_per_token: float
    peer_port: int = 0  # where its agent loads adapters and gives chunks; 0: nowhere
    zone: str = ""
    adapter_room: int = 0  # how many more adapters it could load at once
    on_disk: Bloom | None = None  # the digests on its node's disk; None: nothing is known

    def has_on_disk(self, name: EngineName) -> bool:
        """Whether the adapter's files lie on the node, as far as the node has told."""
        return self.on_disk is not None and self.on_disk.holds_adapter(name)


@dataclass(frozen=True, slots=True)
class PoolView:
    """The live part of a pool at one moment; replicas sorted by id."""

    name: PoolName
    replicas: tuple[ReplicaView, ...]


@dataclass(frozen=True, slots=True)
class RouteRequest:
    engine_name: EngineName
    is_adapter: bool
    prompt_tokens: int  # an estimate from the body's size: nothing on the hot path tokenises
    tie_key: str  # the request id


@dataclass(frozen=True, slots=True)
class Prediction:
    """Milliseconds to first token, term by term: what the request's trace records."""

    replica: ReplicaView
    outstanding: int  # requests that wait or run there
    queue_ms: float
    prefill_ms: float

    @property
    def total_ms(self) -> float:
        return self.queue_ms + self.prefill_ms


@dataclass(frozen=True, slots=True)
class NoReplica:
    """Nobody can take the request now; `reason` is a metric label."""

    reason: Literal["pool_empty", "no_replica_ready", "all_tried", "adapter_not_loaded"]


def decide(
    request: RouteRequest,
    pool: PoolView,
    policy: RoutingEntry,
    in_flight: Mapping[ReplicaId, int],
    excluded: Collection[ReplicaId] = (),
) -> Prediction | NoReplica:
    """The replica with the least predicted time to first token among those that can answer.

    `in_flight` is this gateway's own count per replica; `excluded` are those already tried or ejected.
    """
    if not pool.replicas:
        return NoReplica("pool_empty")
    ready = [replica for replica in pool.replicas if replica.phase == "ready"]
    if not ready:
        return NoReplica("no_replica_ready")
    untried = [replica for replica in ready if replica.id not in excluded]
    if not untried:
        return NoReplica("all_tried")
    able = [replica for replica in untried if not request.is_adapter or request.engine_name in replica.adapters]
    if not able:
        return NoReplica("adapter_not_loaded")
    predictions = [predict(request, replica, in_flight.get(replica.id, 0)) for replica in able]
    share = fair_share(predictions, policy)
    predictions = [prediction for prediction in predictions if prediction.outstanding < share]
    least_ms = min(prediction.total_ms for prediction in predictions)
    tied = [prediction for prediction in predictions if prediction.total_ms == least_ms]
    if len(tied) == 1:
        return tied[0]
    return max(tied, key=lambda prediction: rendezvous(request.tie_key, prediction.replica.id))


def predict(request: RouteRequest, replica: ReplicaView, own_in_flight: int) -> Prediction:
    """The formula of the prologue for one replica."""
    outstanding = max(replica.running + replica.waiting, own_in_flight)
    return Prediction(
        replica=replica,
        outstanding=outstanding,
        queue_ms=outstanding * replica.service_ms,
        prefill_ms=request.prompt_tokens * replica.prefill_ms_per_token,
    )


def fair_share(predictions: Sequence[Prediction], policy: RoutingEntry) -> int:
    """The number of outstanding requests from which a replica takes no more."""
    outstanding = sum(prediction.outstanding for prediction in predictions)
    return ceil(policy.bounded_load * (outstanding + 1) / len(predictions))


def rendezvous(key: str, replica: ReplicaId) -> bytes:
    """The weight of a replica for a key: the heaviest wins, whoever else comes or goes."""
    return hashlib.blake2b(f"{key}\0{replica}".encode(), digest_size=8).digest()
