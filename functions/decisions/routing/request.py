"""Input and output of routing: features of one request, and the choice with every term of its prediction.

They are structs, since one of each is made per decision: frozen dataclasses would cost 2 us more.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

import msgspec

from functions.api.ids import Digest, EngineName, ReplicaId, TenantId
from functions.decisions.routing.replicas import ReplicaView

NOTHING_CACHED: Mapping[ReplicaId, int] = MappingProxyType({})
NO_PENALTIES: Mapping[ReplicaId, float] = MappingProxyType({})

RouteReason = Literal[
    "least_predicted_wait",  # decided by load and speed alone
    "prefix",  # the replica has a part of the prompt in its cache
    "session",  # the session's last request went there
    "spread",  # another replica scored better but has its share of load, or the pool is too full for caches to count
    "panic",  # most of the pool is ejected, so ejections are ignored
    "round_robin",  # this and the rest: routers for comparison (`studies.routers`)
    "least_loaded",
    "cache_aware",
]


class CachedPrompt(msgspec.Struct, frozen=True):
    """Predicted cached tokens of one prompt by replica. An absent replica has none."""

    tokens: Mapping[ReplicaId, int] = NOTHING_CACHED  # tokens that need not be computed
    in_host: Mapping[ReplicaId, int] = NOTHING_CACHED  # part of `tokens` that is in host memory only and is reloaded


NOT_CACHED = CachedPrompt()


class RouteRequest(msgspec.Struct, frozen=True):
    """Features of a request that routing reads."""

    engine_name: EngineName
    is_adapter: bool
    prompt_tokens: int
    tie_key: str  # the request id
    cached_tokens: Mapping[ReplicaId, int] = NOTHING_CACHED  # predicted cached prompt tokens; absent: none
    session_replica: ReplicaId | None = None  # replica of the conversation's last turn, or its assumed home
    zone: str = ""  # the gateway's zone; empty: no preference
    expected_output_tokens: int = 0
    is_first_turn: bool = False  # the session's replica is not known to have any of the conversation
    tenant: TenantId = TenantId("")
    weights: Digest | None = None  # required base weights if the pool has several versions; None: any
    reload_tokens: Mapping[ReplicaId, int] = NOTHING_CACHED  # part of `cached_tokens` that is in host memory only


HomeState = Literal[
    "slower",  # the difference is more than a move costs (`moves`)
    "full",  # the home has its share of the load
    "out",  # the home failed this request already, or is ejected, resting or suspected
]


class Moved(msgspec.Struct, frozen=True):
    """Figures of a conversation's home and of the replica that was chosen instead."""

    home: ReplicaId
    state: HomeState
    predicted_ms: float  # time to first token at the home, with the penalty for refusals
    score_ms: float
    chosen_score_ms: float


class Prediction(msgspec.Struct, frozen=True):
    """Milliseconds to first token, term by term: what the request's trace records."""

    replica: ReplicaView
    outstanding: int  # waiting and running requests
    queue_ms: float
    prefill_ms: float  # for the tokens that are not cached
    cached_tokens: int = 0
    adapter_ms: float = 0.0
    reason: RouteReason = "least_predicted_wait"  # a metric label
    load_elsewhere: ReplicaId | None = (
        None  # replica where a second copy of the adapter would answer sooner, including its load
    )
    reload_ms: float = 0.0  # for cached tokens in host memory
    reload_tokens: int = 0
    moved: Moved | None = None  # set if the conversation did not go to its home

    @property
    def total_ms(self) -> float:
        return self.queue_ms + self.prefill_ms + self.reload_ms + self.adapter_ms

    def explain(self) -> dict[str, float | int | str]:
        """Return the decision for the request's trace (docs/explanation/routing.md describes the fields)."""
        terms: dict[str, float | int | str] = {
            "reason": self.reason,
            "predicted_ms": round(self.total_ms, 1),
            "queue_ms": round(self.queue_ms, 1),
            "prefill_ms": round(self.prefill_ms, 1),
            "adapter_ms": round(self.adapter_ms, 1),
            "outstanding": self.outstanding,
            "cached_tokens": self.cached_tokens,
        }
        if self.reload_tokens:
            terms |= {"reload_tokens": self.reload_tokens, "reload_ms": round(self.reload_ms, 1)}
        if self.load_elsewhere is not None:
            terms["load_elsewhere"] = self.load_elsewhere
        if self.moved is not None:
            terms |= {
                "score_ms": round(self.moved.chosen_score_ms, 1),
                "home": self.moved.home,
                "home_was": self.moved.state,
                "home_predicted_ms": round(self.moved.predicted_ms, 1),
                "home_score_ms": round(self.moved.score_ms, 1),
            }
        return terms


class NoReplica(msgspec.Struct, frozen=True):
    """Result if no replica can take the request now; `reason` is a metric label."""

    reason: Literal[
        "pool_empty",
        "no_replica_ready",
        "all_tried",
        "adapter_not_loaded",
        "weights_not_loaded",
        "told_to_wait",
        "dedicated",
    ]
    after_s: float = 0.0  # with `slow_down`: the suitable replicas are full and asked for this pause
