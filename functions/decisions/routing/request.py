"""Input and output of routing: one request's needs, and the choice with every term of its prediction.

Structs, since one of each is made per decision: as frozen dataclasses they would cost 2 us more.
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
    "least_predicted_wait",  # nothing but load and speed spoke
    "prefix",  # it has a part of the prompt in its cache
    "session",  # the session's last request went there
    "spread",  # a cache spoke for another, which had its share or a pool too full for caches to matter
    "panic",  # most of the pool is out on evidence, which is then not believed
    "round_robin",  # the rest: routers for comparison (`studies.routers`)
    "least_loaded",
    "cache_aware",
]


class CachedPrompt(msgspec.Struct, frozen=True):
    """What is believed of one prompt, by replica; absent: none."""

    tokens: Mapping[ReplicaId, int] = NOTHING_CACHED  # that need not be computed there
    in_host: Mapping[ReplicaId, int] = NOTHING_CACHED  # of those, what lies in host memory alone and is reloaded


NOT_CACHED = CachedPrompt()


class RouteRequest(msgspec.Struct, frozen=True):
    """What routing reads of a request."""

    engine_name: EngineName
    is_adapter: bool
    prompt_tokens: int
    tie_key: str  # the request id
    cached_tokens: Mapping[ReplicaId, int] = NOTHING_CACHED  # prompt tokens predicted in its cache; absent: none
    session_replica: ReplicaId | None = None  # where the conversation went last, or everybody would look for it
    zone: str = ""  # the gateway's own; empty: no preference
    expected_output_tokens: int = 0
    is_first_turn: bool = False  # as far as is known: the session's replica has nothing of it yet
    tenant: TenantId = TenantId("")  # whose request it is
    weights: Digest | None = None  # the base's, of a pool that has several versions of it; None: any
    reload_tokens: Mapping[ReplicaId, int] = NOTHING_CACHED  # of `cached_tokens`, what lies in host memory alone


HomeState = Literal[
    "slower",  # by more than a move costs (`moves`)
    "full",  # it has its share of the load
    "out",  # it failed this request already, or is ejected, resting or suspected
]


class Moved(msgspec.Struct, frozen=True):
    """A conversation that was sent elsewhere than to its home: the home's figures beside the chosen one's."""

    home: ReplicaId
    state: HomeState
    predicted_ms: float  # to first token there, with what a refusal counts
    score_ms: float
    chosen_score_ms: float


class Prediction(msgspec.Struct, frozen=True):
    """Milliseconds to first token, term by term: what the request's trace records."""

    replica: ReplicaView
    outstanding: int  # requests that wait or run there
    queue_ms: float
    prefill_ms: float  # of the tokens that are not cached
    cached_tokens: int = 0
    adapter_ms: float = 0.0
    reason: RouteReason = "least_predicted_wait"  # a metric label
    load_elsewhere: ReplicaId | None = None  # where a second copy of the adapter would answer sooner, its load included
    reload_ms: float = 0.0  # of cached tokens that lie in host memory
    reload_tokens: int = 0
    moved: Moved | None = None  # from the conversation's home

    @property
    def total_ms(self) -> float:
        return self.queue_ms + self.prefill_ms + self.reload_ms + self.adapter_ms

    def explain(self) -> dict[str, float | int | str]:
        """The decision for the request's trace (docs/explanation/routing.md says what each field means)."""
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
    """Nobody can take the request now; `reason` is a metric label."""

    reason: Literal[
        "pool_empty",
        "no_replica_ready",
        "all_tried",
        "adapter_not_loaded",
        "weights_not_loaded",
        "told_to_wait",
        "dedicated",
    ]
    after_s: float = 0.0  # `told_to_wait`: whoever could take it is full, and wants to be left alone for so long
