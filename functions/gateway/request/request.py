"""Records of a request: as admitted, its timeline, and how it ended.

    Admitted    the request as intake found it; immutable: a move to another pool or version makes another `Admitted`
    Timeline    the time of each step, written as the request proceeds
    Ended       the outcome and the resources used: made once by the exchange and passed to each listener in turn

Everything that happens at a request's end reads `Ended` and not the exchange: the fleet's view, admission, the
tenant's account, metrics, a rollout's evidence, the trace (`functions.gateway.assembly` defines their order).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from functions.api.ids import PoolName
from functions.api.snapshot import RoutingEntry, ServiceClass
from functions.decisions.admission.ticket import Ticket
from functions.decisions.catalogue import ResolvedModel
from functions.decisions.request.access import Caller
from functions.decisions.request.features import RequestFeatures
from functions.decisions.routing.choice import Prediction, RouteRequest
from functions.decisions.routing.retry import AttemptFailure
from functions.gateway.http.headers import NO_TRACE, TraceContext
from functions.gateway.intake.routes import Route
from functions.gateway.quota.accounts import RequestQuota
from functions.gateway.request.answers import Usage
from functions.gateway.routing.splits import SplitUse
from functions.telemetry.gap_histogram import GapCounts, Gaps


class Admitted(msgspec.Struct, frozen=True):
    """A request that may be routed, with all that it needs of its snapshot."""

    request_id: str
    caller: Caller
    route: Route
    model: ResolvedModel
    routing: RoutingEntry
    service_class: ServiceClass
    stream: bool
    include_usage: bool  # the caller asked for the usage event of a stream
    deadline_ms: int | None
    features: RequestFeatures
    upstream_body: bytes
    split: SplitUse | None = None  # version chosen by the rollout of the requested channel
    session: str | None = None  # session id of the caller
    conversation: bytes | None = None  # hash of its session or of its chat's beginning; None: neither is known
    is_first_turn: bool = True  # True if the request shows no earlier turn of the conversation
    former_tokens: int | None = None  # prompt tokens that the last turn already had; None: unknown
    trace: TraceContext = NO_TRACE
    slid_turns: int = 0  # number of oldest turns dropped so that the rest fits the context window
    continuous_usage: bool = False  # the caller asked for the usage so far with every event
    ignored_fields: tuple[str, ...] = ()  # unknown fields of the body, which were not sent to the engine

    def let_go_of_body(self) -> None:
        """Drop the body once it will not be sent again. It is mutated in place, because other holders share it."""
        msgspec.structs.force_setattr(self, "upstream_body", b"")

    def route_request(self) -> RouteRequest:
        return RouteRequest(
            engine_name=self.model.engine_name,
            is_adapter=self.model.is_adapter,
            prompt_tokens=self.features.prompt_tokens,
            tie_key=self.request_id,
            tenant=self.caller.tenant,
            weights=self.model.weights,
        )


@dataclass(slots=True)
class Timeline:
    """Time of each step in monotonic seconds; 0 if the request did not reach the step."""

    received_s: float
    admitted_s: float = 0.0
    routed_s: float = 0.0
    connected_s: float = 0.0
    first_token_s: float = 0.0
    ended_s: float = 0.0
    queued_s: float = 0.0  # part of the time to routing: in the admission queue
    paused_s: float = 0.0  # part of the time since the first token: the client did not read
    load_s: float = 0.0  # part of the time to routing: wait for an adapter that no replica had loaded
    wake_s: float = 0.0  # part of the time to routing: wait for the first replica of a pool at zero

    def server_timing(self) -> bytes:
        """Return the `server-timing` header in milliseconds, with `load` and `wake` if the request waited for them."""
        auth_s = self.admitted_s - self.received_s
        route_s = self.routed_s - self.wake_s - self.load_s - self.queued_s - self.admitted_s
        connect_s = self.connected_s - self.routed_s
        ttft_s = self.first_token_s - self.received_s
        timing = b"auth;dur=%.2f, queue;dur=%.2f, route;dur=%.2f, connect;dur=%.2f, ttft;dur=%.2f" % (
            auth_s * 1000 if auth_s > 0.0 else 0.0,
            self.queued_s * 1000,
            route_s * 1000 if route_s > 0.0 else 0.0,
            connect_s * 1000 if connect_s > 0.0 else 0.0,
            ttft_s * 1000 if ttft_s > 0.0 else 0.0,
        )
        if self.wake_s:
            timing += b", wake;dur=%.2f" % (self.wake_s * 1000)
        return timing + b", load;dur=%.2f" % (self.load_s * 1000) if self.load_s else timing


class Spent(NamedTuple):
    """Resources of a replica that a request used."""

    kv_token_seconds: float
    gpu_seconds: float


NOTHING_SPENT = Spent(0.0, 0.0)


class CascadeSpend(NamedTuple):
    """A small model's answer that was paid for and discarded."""

    model: ResolvedModel  # the small model
    usage: Usage
    spent: Spent
    attempt: object  # the attempt that generated the answer


class PrefillSpend(NamedTuple):
    """Work of a prefill pool's replica for an answer that another pool generated."""

    model: ResolvedModel  # in the prefill pool
    spent: Spent


class CascadeOutcome(NamedTuple):
    """Outcome of a small model's answer. The first three fields are metric labels."""

    source: PoolName
    target: PoolName
    verdict: str
    notes: dict[str, Any]  # details for the trace


class Ended(msgspec.Struct, frozen=True):
    """A request that has ended, with its last attempt."""

    admitted: Admitted
    timeline: Timeline
    snapshot_epoch: int
    status: int
    code: str  # error code, or empty
    gave_up: bool  # the caller's own deadline passed, not a timeout of the platform
    begun: bool  # the client received the beginning of a stream
    ticket: Ticket | None  # ticket of the queued or dispatched request
    entry: RequestQuota  # reservation of the tenant's limits
    attempts: int
    failures: tuple[AttemptFailure, ...]
    fingerprint: Callable[[], bytes]  # returns the fingerprint for the quarantine

    # resources used
    usage: Usage | None
    delivered_tokens: int
    spent: Spent  # includes the small model's part
    worked: bool  # True if an engine worked for the answer
    cost_tokens: int | None  # cost charged for fairness; None: the expected cost
    cascade_spend: CascadeSpend | None

    # last attempt
    prediction: Prediction | None  # None means that there was no attempt
    sent_s: float
    gaps: Gaps | None  # time between pieces as they arrived
    token_gaps: GapCounts  # time between tokens, without gaps in which the client did not read
    events: int  # stream events with choices
    tokens: int  # tokens in these events: the engine's count, or the smallest possible number
    last: tuple[bytes, ...]  # the end of the engine's output, at most a few KB

    # path to the pool that answered
    cascade: CascadeOutcome | None
    degraded_from: str  # requested model, if another pool was used instead
    prefill: PrefillSpend | None = None  # set if a prefill pool's replica computed the prompt; part of `spent`
    split: dict[str, Any] | None = None  # details for the trace; None: the pool has no prefill pool


EndListener = Callable[[Ended], None]
